"""Dispatchers: each token's weighted sum of its experts' outputs, from the tokens and experts of one device.

A dispatcher is a function ``dispatch(x, routing, experts) -> y``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from moejax.kernels.experts import Experts, project_down, project_up
from moejax.kernels.permutation import Layout, permute, permute_weights, unpermute
from moejax.kernels.table import select
from moejax.routing.layout import by_expert, by_slot, cut
from moejax.routing.routing import Routing

Dispatch = Callable[[Array, Routing, Experts], Array]


def dense(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """The reference: every expert computes every token. Slow, and plainly right."""
    weights = jnp.zeros((experts.num_experts, x.shape[0]), jnp.float32)
    weights = weights.at[routing.expert, routing.token].add(routing.combine_weight, mode="drop")
    y = project_down(project_up(x, experts), weights, experts)
    return y.sum(0).astype(x.dtype)


def capacity(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """One batched product: each expert computes ``routing.capacity`` rows, empty or not.

    It drops nothing that ``limit_capacity`` has not. A routing without a limit needs room for every token at every
    expert, which is right, and slow.
    """
    limit = routing.capacity or routing.num_tokens
    layout = by_slot(routing, limit)
    rows = permute(x, layout).reshape(experts.num_experts, limit, -1)
    weight = permute_weights(routing.combine_weight, layout).reshape(experts.num_experts, limit)
    y = project_down(project_up(rows, experts), weight, experts)
    return unpermute(y.astype(x.dtype).reshape(-1, x.shape[1]), layout)


def grouped(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
    """Dropless: assignments sorted by expert, and each expert's rows through its own matrices alone.

    Where most slots are invalid, as on a device that has a part of the experts, ``routing.buffer_rows`` rows are
    computed at once, and what exceeds them in further chunks.
    """
    weight, balanced = routing.combine_weight, routing.tokens_per_expert
    kernel = partial(select("experts", x, weight, None, experts), tokens_per_expert=balanced)
    slots, buffer = routing.expert.shape[0], routing.buffer_rows
    if buffer is None or buffer >= slots:
        return kernel(x, weight, partial(by_expert, routing), experts)
    layout = by_expert(routing)

    def chunk(x: Array, weight: Array, experts: Experts, number: Array | int) -> Array:
        def part(padding: int) -> Layout:
            return cut(layout, number * buffer, buffer, padding=padding)

        return kernel(x, weight, part, experts)

    return in_chunks(chunk, layout.offsets[-1], buffer, slots, x, weight, experts)


def in_chunks(
    chunk: Callable[..., Array],
    needed: Int[Array, ""],
    buffer: int,
    most: int,
    x: Float[Array, "tokens model"],
    *arguments: Any,
) -> Float[Array, "tokens model"]:
    """The sum of ``chunk(x, *arguments, number)`` over as many chunks of ``buffer`` rows as hold ``needed`` rows.

    ``most`` bounds ``needed``. The first chunk is always computed. The others are behind a condition, and recompute
    rather than save, so that a program holds no more memory than one chunk needs.
    """
    first = chunk(x, *arguments, 0)
    chunks = -(-most // buffer)
    if chunks == 1:
        return first

    def others(x: Array, *arguments: Any) -> Array:
        def add(total: Array, number: Array) -> tuple[Array, None]:
            return total + jax.checkpoint(chunk)(x, *arguments, number).astype(total.dtype), None

        numbers = jnp.arange(1, chunks, dtype=jnp.int32)
        return lax.scan(add, jnp.zeros(x.shape, jnp.float32), numbers)[0].astype(x.dtype)

    return first + lax.cond(needed > buffer, others, lambda x, *_: jnp.zeros_like(x), x, *arguments)


DISPATCHERS: dict[str, Dispatch] = {"dense": dense, "capacity": capacity, "grouped": grouped}
"""Dispatchers by ``Runtime.dispatcher``."""
