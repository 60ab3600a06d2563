"""Sort assignments by expert: arrange their rows, and limit the capacity of experts.

Only ``limit_capacity`` drops tokens.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from moejax.kernels.permutation import Layout
from moejax.routing.routing import Routing
from moejax.sharding import TOKEN_AXES, can_split, over_tokens, token_shards


def by_expert(routing: Routing, padding: int = 0) -> Layout:
    """Order rows by expert without gaps, followed by the invalid slots and ``padding`` empty rows."""
    order, offsets = expert_order(routing.expert, routing.num_experts)
    source = jnp.pad(order, (0, padding), constant_values=order.shape[0])
    return _with_rows(source, jnp.arange(order.shape[0], dtype=jnp.int32), order, routing, offsets)


def by_slot(routing: Routing, capacity: int) -> Layout:
    """Give each expert ``capacity`` rows; unused rows stay empty."""
    order, offsets = expert_order(routing.expert, routing.num_experts)
    starts, slots = offsets[:-1], jnp.arange(capacity, dtype=jnp.int32)
    place = starts[:, None] + slots
    source = jnp.where(place < offsets[1:, None], order.at[place].get(mode="clip"), order.shape[0]).reshape(-1)
    expert = routing.expert[order]
    first = jnp.arange(routing.num_experts, dtype=jnp.int32) * capacity - starts
    rows = jnp.arange(order.shape[0], dtype=jnp.int32) + first.at[expert].get(mode="clip")
    return _with_rows(source, rows, order, routing, offsets)


def cut(layout: Layout, start: Array | int, rows: int, padding: int = 0) -> Layout:
    """Cut ``rows`` rows, beginning at ``start``, from a layout by expert and add ``padding`` empty rows; other slots
    get no row."""
    slots = layout.row.shape[0]

    def part(of_rows: Array, empty: int) -> Array:
        longer = jnp.pad(of_rows, (0, rows), constant_values=empty)
        return jnp.pad(jax.lax.dynamic_slice_in_dim(longer, start, rows), (0, padding), constant_values=empty)

    here = (layout.row >= start) & (layout.row < start + rows)
    return dataclasses.replace(
        layout,
        source=part(layout.source, slots),
        row=jnp.where(here, layout.row - start, rows + padding),
        offsets=jnp.clip(layout.offsets - start, 0, rows),
        token=None if layout.token is None else part(layout.token, layout.num_tokens),
    )


def _with_rows(source: Array, rows: Array, order: Array, routing: Routing, offsets: Array) -> Layout:
    row = jnp.zeros_like(rows).at[order].set(rows, unique_indices=True, mode="promise_in_bounds")
    token = None
    if routing.top_k is None:
        token = jnp.where(routing.valid, routing.token, routing.num_tokens)
        token = token.at[source].get(mode="fill", fill_value=routing.num_tokens)
    return Layout(
        source=source,
        row=jnp.where(routing.valid, row, source.shape[0]),
        offsets=offsets,
        token=token,
        num_tokens=routing.num_tokens,
        top_k=routing.top_k,
    )


def expert_order(
    experts_of: Int[Array, " assignments"], experts: int
) -> tuple[Int[Array, " assignments"], Int[Array, " offsets"]]:
    """Return the assignments sorted stably by expert, and each expert's offset in this order."""
    assignments = experts_of.shape[0]
    slots = jnp.arange(assignments, dtype=jnp.int32)
    if (experts + 1) * assignments < 2**31:
        # Sorting one integer that combines expert and slot is stable, and faster than sorting pairs.
        keys = jnp.sort(experts_of * assignments + slots)
        order, expert = keys % assignments, keys // assignments
    else:
        expert, order = jax.lax.sort((experts_of, slots), num_keys=1, is_stable=True)
    return order, jnp.searchsorted(expert, jnp.arange(experts + 1, dtype=jnp.int32)).astype(jnp.int32)


def expert_capacity(assignments: Any, num_experts: int, capacity_factor: float) -> Any:
    """Return the maximum number of assignments of an expert: the balanced load times ``capacity_factor``, rounded up.

    ``assignments`` is an int or a traced Int32 array. Integer arithmetic gives the same rounding for both.
    """
    # No product below exceeds 32 bits. A factor above num_experts has no effect.
    factor = min(capacity_factor, num_experts)
    finest = math.isqrt(2**30 // (num_experts * math.ceil(factor)))
    share = (Fraction(factor).limit_denominator(finest) or Fraction(1, finest)) / num_experts
    whole, rest = divmod(assignments, share.denominator)
    return whole * share.numerator - -rest * share.numerator // share.denominator


def limit_capacity(
    routing: Routing, capacity_factor: float | None, padding_mask: Bool[Array, " tokens"] | None = None
) -> Routing:
    """Mark the assignments beyond an expert's capacity as invalid; a ``capacity_factor`` of None drops nothing.

    Earlier tokens have priority over later tokens (GShard, Switch). ``padding_mask`` is False for padding, whose slots
    are already invalid in ``routing``; the capacity depends only on the number of other tokens.
    """
    if capacity_factor is None:
        return routing
    most = expert_capacity(routing.expert.shape[0], routing.num_experts, capacity_factor)
    if padding_mask is None:
        capacity = jnp.int32(most)
    else:
        made = routing.valid.sum() if routing.top_k is None else routing.top_k * padding_mask.sum()
        capacity = expert_capacity(made, routing.num_experts, capacity_factor)
    first = functools.partial(_first_of_expert, experts=routing.num_experts)
    if token_shards() > 1 and routing.top_k is not None and can_split(routing.num_tokens):
        kept = over_tokens(functools.partial(first, axes=TOKEN_AXES), [routing.expert], [capacity])
    else:
        kept = first(routing.expert, capacity)
    return dataclasses.replace(routing.masked(kept), capacity=min(most, routing.num_tokens))


def _first_of_expert(
    experts_of: Int[Array, " assignments"], count: Int[Array, ""], *, experts: int, axes: tuple[str, ...] = ()
) -> Bool[Array, " assignments"]:
    """Return a mask of the assignments that are among their expert's first ``count`` assignments. With ``axes``,
    ``experts_of`` is one device's shard and ``count`` is the global limit. Assignments in earlier shards along these
    mesh axes rank first. Devices exchange only counts."""
    order, offsets = expert_order(experts_of, experts)
    start = offsets
    if axes:
        counts = jax.lax.all_gather(jnp.diff(offsets, append=offsets[-1:]), axes)
        is_earlier = jnp.arange(counts.shape[0]) < jax.lax.axis_index(axes)
        start = offsets - jnp.where(is_earlier[:, None], counts, 0).sum(0)
    rank = jnp.arange(order.size, dtype=jnp.int32) - start[experts_of[order]]
    return jnp.zeros(order.size, bool).at[order].set(rank < count, unique_indices=True)
