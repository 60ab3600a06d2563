"""Time compiled programs on an accelerator, which runs asynchronously."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from accelerator_stages.cases import Cases, Row
from moejax.laws.chips import CHIPS, Chip
from moejax.train.devices import CHIP_OF_DEVICE

ROUNDS = 5
MOST_CALLS, MOST_BYTES = 20, 2**34
"""Maximum number of calls before the host waits, and maximum total bytes of their results."""


def time_calls(function: Callable[..., Any], *arguments: Any, seconds: float) -> Row:
    """Compile, warm up, and time a function for about ``seconds``; return the median milliseconds per call over rounds.

    The host launches all calls of a round and waits once, so that its work overlaps with the device's, as in training.
    ``spread`` is the difference between the slowest and the fastest round, divided by the median.
    """
    began = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile()
    compile_seconds = time.perf_counter() - began
    jax.block_until_ready(compiled(*arguments))
    result = jax.block_until_ready(compiled(*arguments))
    most = MOST_BYTES // max(1, sum(leaf.nbytes for leaf in jax.tree.leaves(result)))
    del result
    once = _round(compiled, arguments, 1)
    calls = max(1, min(MOST_CALLS, most, round(seconds / ROUNDS / once)))
    times = [_round(compiled, arguments, calls) for _ in range(ROUNDS)]
    middle = statistics.median(times)
    return {
        "milliseconds": 1e3 * middle,
        "spread": (max(times) - min(times)) / middle,
        "calls": calls * ROUNDS,
        "compile_seconds": compile_seconds,
    }


def _round(compiled: Callable[..., Any], arguments: tuple[Any, ...], calls: int) -> float:
    """Return the mean seconds per call over consecutive calls."""
    began, result = time.perf_counter(), None
    for _ in range(calls):
        result = compiled(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / calls


def with_rate(row: Row, flops: float) -> Row:
    """Return the row of ``time_calls`` with the FLOPs of a call and ``tflops_per_second``."""
    return row | {"flops": flops, "tflops_per_second": flops / row["milliseconds"] / 1e9}


def chip() -> Chip | None:
    """Return the maker's specification of this device, or None; if a chip has two devices, half of the chip's."""
    found = CHIPS.get(CHIP_OF_DEVICE.get(jax.devices()[0].device_kind, ""))
    return found and found.device


def normal(seed: int, *shapes: tuple[int, ...], dtype: Any) -> list[jax.Array]:
    """Return random arrays of these shapes from one program, which avoids float32 copies in memory. Matrices, stacked
    or not, are scaled so that matmuls preserve the scale of rows.
    """

    def draw(key: jax.Array) -> list[jax.Array]:
        keys = jax.random.split(key, len(shapes))
        return [
            jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-2] ** -0.5 if len(shape) == 3 else 1, dtype)
            for key, shape in zip(keys, shapes, strict=True)
        ]

    return jax.jit(draw)(jax.random.key(seed))


def is_alive() -> bool:
    """Return whether the device still computes; after an illegal memory access it does not recover."""
    try:
        return float(jnp.ones(()) + 1) == 2
    except Exception:
        return False


def bench_seconds(cases: Cases) -> float:
    """Return the seconds for timing one case."""
    return 0.02 if cases.is_dry else 0.5
