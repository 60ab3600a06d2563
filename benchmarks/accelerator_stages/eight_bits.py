"""Compare 8-bit and bfloat16 matmuls: a projection, the experts' grouped matmuls, and training steps.

Times include quantization, as in training; gradients of matrices are not computed in 8 bits (docs/quantization.md).
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp

from accelerator_stages import steps
from accelerator_stages.cases import Cases, Row
from accelerator_stages.shapes import Experts, check_accepts, experts, group_sizes, kernels
from accelerator_stages.timing import bench_seconds, is_alive, normal, time_calls, with_rate
from moejax.kernels.quantization import TYPES, matmul
from moejax.kernels.table import load

SEED = secrets.randbits(31)
IN_FULL = "none"


def main(cases: Cases) -> None:
    cases = replace(cases, is_alive=is_alive)
    of, kinds = experts(cases.is_dry)[0], (IN_FULL, *TYPES)
    for kind, kernel in itertools.product(TYPES, kernels("grouped_matmul_8_bits", reference=cases.is_dry)):
        cases.measure(f"grouped {kind}, {kernel}", partial(grouped, cases, of, kind, kernel))
    # XLA's autotuning of float8 matmuls takes half a minute.
    for kind in kinds:
        cases.measure(f"projection {kind}", partial(projection, cases, of, kind))
    for kind in kinds:
        variant = steps.Variant(quantization=kind)
        cases.measure(f"step {kind}", partial(steps.time_step, cases, variant))


def _dtype(cases: Cases) -> Any:
    return jnp.float32 if cases.is_dry else jnp.bfloat16


def projection(cases: Cases, of: Experts, kind: str) -> Row:
    """Time a matmul of rows with one square matrix."""
    x, matrix = normal(SEED, (4 * of.tokens, of.width), (1, of.width, of.width), dtype=_dtype(cases))
    function = jnp.matmul if kind == IN_FULL else partial(matmul, kind)
    return with_rate(
        time_calls(function, x, matrix[0], seconds=bench_seconds(cases)), 8.0 * of.tokens * of.width * of.width
    )


def grouped(cases: Cases, of: Experts, kind: str, kernel: str) -> Row:
    """Time the gate and up projections of a layer's experts under a balanced load."""
    into, out_of = of.products()["gate_up"]
    x, matrices = normal(SEED, (of.rows, into), (of.experts, out_of, into), dtype=_dtype(cases))
    check_accepts("grouped_matmul_8_bits", kernel, x, matrices, quantization=kind)
    function = partial(load("grouped_matmul_8_bits", kernel), quantization=kind)
    sizes = jnp.asarray(group_sizes(of, "balanced", SEED))
    return with_rate(
        time_calls(function, x, matrices, sizes, seconds=bench_seconds(cases)), 2.0 * of.rows * into * out_of
    )
