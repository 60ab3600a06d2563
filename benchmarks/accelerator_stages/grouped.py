"""Time grouped matmuls by backend, part and shape, and all experts of a layer, forward and backward.

The number of rows is the number of assignments of 8,192 tokens. Each part takes 2 · rows · input width · output width
FLOPs. ``one product`` is the same work with one matrix for all rows; the difference is the cost of grouping.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dispatch import Size, draw_routing

from accelerator_stages.cases import Cases, Row
from accelerator_stages.shapes import Experts, check_accepts, experts, group_sizes, kernels
from accelerator_stages.timing import bench_seconds, is_alive, normal, time_calls, with_rate
from moejax.kernels.experts import Experts as ExpertArrays
from moejax.kernels.table import load
from moejax.routing.layout import by_expert

PARTS = ("forward", "rows_gradient", "matrices_gradient")
ONE, STOCK = "one product", "lax.ragged_dot"
SEED = secrets.randbits(31)


def main(cases: Cases) -> None:
    cases, shapes = replace(cases, is_alive=is_alive), experts(cases.is_dry)
    backends = kernels("grouped_matmul", reference=cases.is_dry)

    def products(of: Experts, product: str, backends: list[str]) -> None:
        for backend in backends:
            for part in PARTS:
                run = partial(time_product, of, product, backend, part, cases.is_dry, bench_seconds(cases))
                cases.measure(f"{of.model} {product} {part}, {backend}", run)

    def layers(of: Experts) -> None:
        for kernel in kernels("experts", reference=cases.is_dry):
            run = partial(time_experts, of, kernel, cases.is_dry, bench_seconds(cases))
            cases.measure(f"{of.model} experts, {kernel}", run)

    # The most important cases come first, because time may be short.
    for of in shapes:
        products(of, "gate_up", [*backends, ONE])
    layers(shapes[0])
    for of in shapes:
        products(of, "down", backends)
    for of in shapes[1:]:
        layers(of)
    products(shapes[0], "gate_up", [STOCK])


@functools.lru_cache(maxsize=1)
def _arrays(of: Experts, into: int, out_of: int, dtype: Any) -> list[jax.Array]:
    """Return rows, their gradient and matrices, for one shape at a time, because DeepSeek-V3's arrays take 15 GB."""
    return normal(SEED, (of.rows, into), (of.rows, out_of), (of.experts, into, out_of), dtype=dtype)


def time_product(of: Experts, product: str, backend: str, part: str, is_dry: bool, seconds: float) -> Row:
    """Time one part of a grouped matmul under a balanced load, and under Zipf loads with the same program."""
    into, out_of = of.products()[product]
    x, dy, matrices = _arrays(of, into, out_of, jnp.float32 if is_dry else jnp.bfloat16)
    given = {"forward": (x, matrices), "rows_gradient": (dy, matrices), "matrices_gradient": (x, dy)}[part]
    if backend not in (ONE, STOCK):
        check_accepts("grouped_matmul", backend, x, matrices)
    function = jax.jit(_function(backend, part))
    flops = 2.0 * of.rows * into * out_of
    balanced, uneven = (jnp.asarray(group_sizes(of, load, SEED)) for load in ("balanced", "zipf"))
    row = with_rate(time_calls(function, *given, balanced, seconds=seconds), flops)
    row |= {"model": of.model, "product": product, "part": part, "backend": backend, "rows": of.rows,
            "is_grouped": backend != ONE, "dtype": x.dtype.name}  # fmt: skip
    if backend == ONE:
        return row
    zipf = time_calls(function, *given, uneven, seconds=seconds / 2)
    # The stage hugging_face measures the same shape.
    return row | {
        "zipf_milliseconds": zipf["milliseconds"],
        "zipf_tflops_per_second": with_rate(zipf, flops)["tflops_per_second"],
        "same_as": f"{of.model} {product} {part}",
    }


def _function(backend: str, part: str) -> Callable[..., jax.Array]:
    """``(rows or their gradient, the other factor, group sizes) -> result``"""
    if backend == ONE:
        return {
            "forward": lambda x, matrices, sizes: x @ matrices[0],
            "rows_gradient": lambda dy, matrices, sizes: dy @ matrices[0].T,
            "matrices_gradient": lambda x, dy, sizes: x.T @ dy,
        }[part]
    if backend != STOCK:
        return getattr(load("grouped_matmul", backend), part)
    if part == "forward":
        return jax.lax.ragged_dot

    def rows_gradient(dy, matrices, sizes):
        unread = jnp.zeros((dy.shape[0], matrices.shape[1]), dy.dtype)
        return jax.vjp(lambda x: jax.lax.ragged_dot(x, matrices, sizes), unread)[1](dy)[0]

    def matrices_gradient(x, dy, sizes):
        unread = jnp.zeros((sizes.shape[0], x.shape[1], dy.shape[1]), x.dtype)
        return jax.vjp(lambda matrices: jax.lax.ragged_dot(x, matrices, sizes), unread)[1](dy)[0]

    return rows_gradient if part == "rows_gradient" else matrices_gradient


def time_experts(of: Experts, kernel: str, is_dry: bool, seconds: float) -> Row:
    """Time sorting, permutation, gate and up, activation, down, sum, and all gradients: 18 · rows · width · hidden
    FLOPs.
    """
    _arrays.cache_clear()
    dtype = jnp.float32 if is_dry else jnp.bfloat16
    into, out_of = (of.experts, 2, of.width, of.hidden), (of.experts, of.hidden, of.width)
    x, dy, gate_up, down = normal(SEED, (of.tokens, of.width), (of.tokens, of.width), into, out_of, dtype=dtype)
    size = Size(of.tokens, of.top_k, of.width, of.hidden, of.experts)
    routing = draw_routing(size, np.random.default_rng(SEED))
    given, each = ExpertArrays(gate_up, down), of.rows // of.experts
    check_accepts("experts", kernel, x, routing.combine_weight, partial(by_expert, routing), given)
    function = load("experts", kernel)

    def both(x, weight, given, dy, expert):
        # The choice is an argument, so that the compiler cannot sort it at compile time.
        layout = partial(by_expert, replace(routing, expert=expert))
        _, back = jax.vjp(lambda x, w, e: function(x, w, layout, e, tokens_per_expert=each), x, weight, given)
        return back(dy)

    arguments = (x, routing.combine_weight, given, dy, routing.expert)
    row = with_rate(time_calls(both, *arguments, seconds=seconds), 18.0 * of.rows * of.width * of.hidden)
    return row | {"backend": kernel, "is_grouped": False, "model": of.model, "product": "experts",
                  "part": "both", "same_as": f"{of.model} experts"}  # fmt: skip
