"""Measure the device's peak rates: memory bandwidth by a copy, and FLOP/s by large matmuls."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp

from accelerator_stages.cases import Cases, Row
from accelerator_stages.timing import bench_seconds, chip, is_alive, time_calls, with_rate


def main(cases: Cases) -> None:
    cases = replace(cases, is_alive=is_alive)
    seconds = bench_seconds(cases)
    numbers = 2**16 if cases.is_dry else 2**30
    cases.measure("copy", partial(copy, jnp.copy, numbers, seconds))
    cases.measure("add one", partial(copy, lambda x: x + 1, numbers, seconds))
    side = 128 if cases.is_dry else 8192
    cases.measure("product bfloat16", partial(product, side, jnp.bfloat16, None, seconds))
    cases.measure("product float32, default precision", partial(product, side, jnp.float32, "default", seconds))
    cases.measure("product float32, highest precision", partial(product, side, jnp.float32, "highest", seconds))


def copy(function, numbers: int, seconds: float) -> Row:
    """Measure bytes read and written per second by a copy of a float32 array larger than any cache."""
    x = jax.random.normal(jax.random.key(0), (numbers,), jnp.float32)
    row = time_calls(function, x, seconds=seconds)
    known = chip()
    rate = 2 * x.nbytes / row["milliseconds"] / 1e6
    peak = known and known.memory_bytes_per_second / 1e9
    return row | {"gigabytes_per_second": rate, "share_of_peak": rate / peak if peak else None}


def product(side: int, dtype, precision: str | None, seconds: float) -> Row:
    """Time a matmul of square random matrices. Zeros would be faster, because they take less power."""
    one, other = (jax.random.normal(key, (side, side)).astype(dtype) for key in jax.random.split(jax.random.key(1)))

    def multiply(one, other):
        return jnp.matmul(one, other, precision=precision)

    row = with_rate(time_calls(multiply, one, other, seconds=seconds), 2.0 * side**3)
    known = chip() if dtype == jnp.bfloat16 else None
    return row | {"share_of_peak": 1e12 * row["tflops_per_second"] / known.flops_per_second if known else None}
