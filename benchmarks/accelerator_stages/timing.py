"""Times of compiled programs on an accelerator, which works behind the back of the host."""

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
"""Calls that are launched before the host waits, and how many bytes their results may have together."""


def time_calls(function: Callable[..., Any], *arguments: Any, seconds: float) -> Row:
    """Compile, warm up, and time a function in some ``seconds``: milliseconds of a call, the median of rounds.

    Calls of a round are launched one after another and waited for once, so that the host's part is hidden behind the
    device's, as in a training. ``spread`` is the distance between the slowest and the fastest round over the median.
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
    """Seconds of a call, of so many in a row."""
    began, result = time.perf_counter(), None
    for _ in range(calls):
        result = compiled(*arguments)
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / calls


def with_rate(row: Row, flops: float) -> Row:
    """A row of ``time_calls`` with the FLOPs of a call, and ``tflops_per_second``."""
    return row | {"flops": flops, "tflops_per_second": flops / row["milliseconds"] / 1e9}


def chip() -> Chip | None:
    """What the maker states of this device, if it is known: of a chip that is two of them, a half."""
    found = CHIPS.get(CHIP_OF_DEVICE.get(jax.devices()[0].device_kind, ""))
    return found and found.device


def normal(seed: int, *shapes: tuple[int, ...], dtype: Any) -> list[jax.Array]:
    """Random numbers of these shapes, made by one program: drawn one by one they would pass through memory in float32.
    Matrices, stacked or not, are scaled so that products with them keep the size of their rows."""

    def draw(key: jax.Array) -> list[jax.Array]:
        keys = jax.random.split(key, len(shapes))
        return [
            jax.random.normal(key, shape, dtype) * jnp.asarray(shape[-2] ** -0.5 if len(shape) == 3 else 1, dtype)
            for key, shape in zip(keys, shapes, strict=True)
        ]

    return jax.jit(draw)(jax.random.key(seed))


def is_alive() -> bool:
    """Whether the device still computes: after an access to memory that is not its own it never does again."""
    try:
        return float(jnp.ones(()) + 1) == 2
    except Exception:
        return False


def bench_seconds(cases: Cases) -> float:
    """How long one thing is timed."""
    return 0.02 if cases.is_dry else 0.5
