"""Compute each token's weighted sum of its experts' outputs, for the tokens and experts of one device.

A dispatcher is a function ``dispatch(x, routing, experts) -> y``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from moejax.kernels.control_flow import cond_likely
from moejax.kernels.experts import Experts, apart, project_down, project_up, side_by_side
from moejax.kernels.permutation import Layout, permute, permute_weights, unpermute
from moejax.kernels.saved_names import MOE_GATE_UP
from moejax.kernels.table import select
from moejax.routing.layout import by_expert, by_slot, cut
from moejax.routing.routing import Routing

Dispatch = Callable[[Array, Routing, Experts], Array]


def dense(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """Compute every token with every expert, as a slow but simple reference."""
    weights = jnp.zeros((experts.num_experts, x.shape[0]), jnp.float32)
    weights = weights.at[routing.expert, routing.token].add(routing.combine_weight, mode="drop")
    y = project_down(checkpoint_name(project_up(x, experts), MOE_GATE_UP), weights, experts)
    return y.sum(0).astype(x.dtype)


def capacity(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """Compute one batched matmul in which each expert has ``routing.capacity`` rows, including empty rows.

    Only ``limit_capacity`` drops tokens. A routing without a limit needs space for every token at every expert, which
    is correct but slow.
    """
    limit = routing.capacity or routing.num_tokens
    layout = by_slot(routing, limit)
    rows = permute(x, layout).reshape(experts.num_experts, limit, -1)
    weight = permute_weights(routing.combine_weight, layout).reshape(experts.num_experts, limit)
    y = project_down(checkpoint_name(project_up(rows, experts), MOE_GATE_UP), weight, experts)
    return unpermute(y.astype(x.dtype).reshape(-1, x.shape[1]), layout)


def grouped(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """Sort assignments by expert and multiply each expert's rows by its own matrices, without dropping tokens.

    If most slots are invalid, for example on a device that holds only some of the experts, compute the first
    ``routing.buffer_rows`` rows at once and the remaining rows in chunks.
    """
    weight, balanced = routing.combine_weight, routing.tokens_per_expert
    kernel = partial(select("experts", x, weight, None, experts), tokens_per_expert=balanced)
    slots, buffer = routing.expert.shape[0], routing.buffer_rows
    if buffer is None or buffer >= slots:
        return kernel(x, weight, partial(by_expert, routing), experts)
    layout = by_expert(routing)

    def chunk(number: Array | int, layout: Layout, *given: Any) -> Array:
        def part(padding: int) -> Layout:
            return cut(layout, number * buffer, buffer, padding=padding)

        x, weight, experts = given
        return kernel(x, weight, part, dataclasses.replace(experts, gate_up=apart(experts.gate_up)))

    # A conditional fixes its outputs' memory layout. Keep matrices and their gradients in the layout of the matmuls.
    experts = dataclasses.replace(experts, gate_up=side_by_side(experts.gate_up))
    return in_chunks(chunk, buffer, layout.offsets[-1], layout, x, weight, experts)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def in_chunks(chunk: Callable[..., Array], buffer: int, needed: Int[Array, ""], layout: Layout, *given: Any) -> Array:
    """Return the sum of ``chunk(number, layout, *given)`` over the chunks of ``buffer`` rows that cover ``needed``
    rows.

    The first chunk is always computed. The other chunks, and their gradients in the backward pass, are added inside a
    conditional, and recomputed rather than saved. With plain differentiation, a conditional would output its branches'
    saved values and the gradients of all their inputs, which are zeros if the branch is not taken.
    """
    return _and_others(chunk, buffer, needed, layout, given, chunk(0, layout, *given))


def _and_others(
    part: Callable[..., Any], buffer: int, needed: Array, layout: Layout, given: tuple[Any, ...], first: Any
) -> Any:
    """Return ``first`` plus the sum of ``part(number, layout, *given)`` over the other chunks that contain needed
    rows."""

    def added(first: Any, *operands: Any) -> Any:
        def add(number: Array, total: Any) -> Any:
            return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part(number, *operands))

        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), first)
        # Loop only over needed chunks: with many devices along the expert axis, most chunks are empty.
        total = lax.fori_loop(jnp.ones_like(needed), -(-needed // buffer), add, wide)
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, first)

    return cond_likely(needed <= buffer, lambda first, *_: first, added, first, layout, *given)


def _save(chunk: Callable[..., Array], buffer: int, needed: Array, layout: Layout, *given: Any) -> tuple[Array, Any]:
    first, gradients_of_first = jax.vjp(partial(chunk, 0, layout), *given)
    y = _and_others(chunk, buffer, needed, layout, given, first)
    return y, (needed, layout, given, gradients_of_first)


def _gradients(chunk: Callable[..., Array], buffer: int, saved: Any, dy: Array) -> tuple[Any, ...]:
    needed, layout, given, gradients_of_first = saved

    def gradients(number: Array, layout: Layout, dy: Array, *given: Any) -> tuple[Any, ...]:
        return jax.vjp(partial(chunk, number, layout), *given)[1](dy)

    gradients_of_given = _and_others(gradients, buffer, needed, layout, (dy, *given), gradients_of_first(dy))
    return None, None, *gradients_of_given


in_chunks.defvjp(_save, _gradients)


DISPATCHERS: dict[str, Dispatch] = {"dense": dense, "capacity": capacity, "grouped": grouped}
"""Dispatchers, keyed by ``Runtime.dispatcher``."""
