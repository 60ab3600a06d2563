"""Arrange the rows of assignments for the experts."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from moejax.kernels.permutation import Layout
from moejax.routing.routing import Routing


def by_expert(routing: Routing, padding: int = 0) -> Layout:
    """Order rows by expert without gaps, followed by the invalid slots and ``padding`` more rows."""
    order, offsets = expert_order(routing)
    source = jnp.pad(order, (0, padding), constant_values=order.shape[0])
    return _with_rows(source, jnp.arange(order.shape[0], dtype=jnp.int32), order, routing, offsets)


def by_slot(routing: Routing, capacity: int) -> Layout:
    """Give each expert ``capacity`` rows, leaving unused ones empty."""
    order, offsets = expert_order(routing)
    starts, slots = offsets[:-1], jnp.arange(capacity, dtype=jnp.int32)
    place = starts[:, None] + slots
    source = jnp.where(place < offsets[1:, None], order.at[place].get(mode="clip"), order.shape[0]).reshape(-1)
    expert = routing.expert[order]
    first = jnp.arange(routing.num_experts, dtype=jnp.int32) * capacity - starts
    rows = jnp.arange(order.shape[0], dtype=jnp.int32) + first.at[expert].get(mode="clip")
    return _with_rows(source, rows, order, routing, offsets)


def cut(layout: Layout, start: Array | int, rows: int, padding: int = 0) -> Layout:
    """Cut ``rows`` rows from ``start`` out of a layout by expert and add ``padding`` empty rows; other slots have no
    row."""
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


def expert_order(routing: Routing) -> tuple[Int[Array, " assignments"], Int[Array, " offsets"]]:
    """Return the assignments sorted stably by expert, and the first position of each expert."""
    assignments, experts = routing.expert.shape[0], routing.num_experts
    slots = jnp.arange(assignments, dtype=jnp.int32)
    if (experts + 1) * assignments < 2**31:
        # Sorting one integer that combines expert and slot is faster than sorting a pair, and stable.
        keys = jnp.sort(routing.expert * assignments + slots)
        order, expert = keys % assignments, keys // assignments
    else:
        expert, order = jax.lax.sort((routing.expert, slots), num_keys=1, is_stable=True)
    return order, jnp.searchsorted(expert, jnp.arange(experts + 1, dtype=jnp.int32)).astype(jnp.int32)
