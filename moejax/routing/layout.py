"""Where each assignment's row lies while the experts work, and rows moved there and back.

Both moves are gathers, and so are their gradients: where each token has the same number of entries, the gradient of a
gather is a gather by the inverse permutation instead of a scatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from moejax.pytree import pytree
from moejax.routing.routing import Routing

MOST_TERMS = 8
"""Most entries of a token that are gathered and added one by one."""


@pytree
@dataclass(frozen=True)
class Layout:
    """A one-to-one map between assignments and rows; rows may be empty, and phantoms have none."""

    source: Any
    """Int32[rows]: assignment of each row, or the number of assignments if the row is empty."""
    row: Any
    """Int32[assignments]: row of each assignment, or the number of rows for a phantom."""
    offsets: Any
    """Int32[experts + 1]: places of the experts' first assignments in the order of experts, then of the phantoms."""


def by_expert(routing: Routing, padding: int = 0) -> Layout:
    """Rows in the order of experts, nothing between them, then the phantoms and ``padding`` rows more."""
    order, offsets = _expert_order(routing)
    source = jnp.pad(order, (0, padding), constant_values=order.shape[0])
    return _with_rows(source, jnp.arange(order.shape[0], dtype=jnp.int32), order, routing, offsets)


def by_slot(routing: Routing, capacity: int) -> Layout:
    """``capacity`` rows for each expert, those it does not fill left empty."""
    order, offsets = _expert_order(routing)
    starts, slots = offsets[:-1], jnp.arange(capacity, dtype=jnp.int32)
    place = starts[:, None] + slots
    source = jnp.where(place < offsets[1:, None], order.at[place].get(mode="clip"), order.shape[0]).reshape(-1)
    expert = routing.expert[order]
    first = jnp.arange(routing.num_experts, dtype=jnp.int32) * capacity - starts
    rows = jnp.arange(order.shape[0], dtype=jnp.int32) + first.at[expert].get(mode="clip")
    return _with_rows(source, rows, order, routing, offsets)


def cut(layout: Layout, start: Array | int, rows: int, padding: int = 0) -> Layout:
    """``rows`` rows of a layout by expert, from ``start`` on, and ``padding`` empty ones; the rest have no row here."""
    entries = layout.row.shape[0]
    source = jnp.pad(layout.source, (0, rows), constant_values=entries)
    source = jnp.pad(jax.lax.dynamic_slice_in_dim(source, start, rows), (0, padding), constant_values=entries)
    here = (layout.row >= start) & (layout.row < start + rows)
    return Layout(
        source, jnp.where(here, layout.row - start, rows + padding), jnp.clip(layout.offsets - start, 0, rows)
    )


def _with_rows(source, rows, order, routing: Routing, offsets) -> Layout:
    row = jnp.zeros_like(rows).at[order].set(rows, unique_indices=True, mode="promise_in_bounds")
    return Layout(source, jnp.where(routing.serves, row, source.shape[0]), offsets)


def _expert_order(routing: Routing) -> tuple[Int[Array, " assignments"], Int[Array, " offsets"]]:
    """The assignments sorted by expert, equal experts in their order, and where each expert begins."""
    assignments, experts = routing.expert.shape[0], routing.num_experts
    slots = jnp.arange(assignments, dtype=jnp.int32)
    if (experts + 1) * assignments < 2**31:
        # One integer that holds expert and slot sorts faster than a pair, and stably.
        keys = jnp.sort(routing.expert * assignments + slots)
        order, expert = keys % assignments, keys // assignments
    else:
        expert, order = jax.lax.sort((routing.expert, slots), num_keys=1, is_stable=True)
    return order, jnp.searchsorted(expert, jnp.arange(experts + 1, dtype=jnp.int32)).astype(jnp.int32)


def spread(x: Float[Array, "tokens n"], routing: Routing, layout: Layout) -> Float[Array, "rows n"]:
    """Each row's token; zeros in empty rows."""
    if routing.per_token is None:
        # Through float32, in which the gradient adds up a token's rows.
        rows = x.astype(jnp.float32).at[_token(routing, layout)].get(mode="fill", fill_value=0)
        return rows.astype(x.dtype)
    return _spread(routing.per_token, x, layout.source, layout.row)


def collect(rows: Float[Array, "rows n"], routing: Routing, layout: Layout) -> Float[Array, "tokens n"]:
    """Each token's sum over its rows: the transpose of ``spread``."""
    if routing.per_token is None:
        total = jnp.zeros((routing.num_tokens, rows.shape[1]), jnp.float32)
        real = _token(routing, layout, serving=True)
        return total.at[real].add(rows.astype(jnp.float32), mode="drop").astype(rows.dtype)
    return _collect(routing.per_token, rows, layout.source, layout.row)


def arrange(values: Float[Array, " assignments"], layout: Layout) -> Float[Array, " rows"]:
    """Each row's own value; 0 in empty rows."""
    return _spread(1, values[:, None], layout.source, layout.row)[:, 0]


def token_of_rows(routing: Routing, layout: Layout) -> Int[Array, " rows"]:
    """Each row's token; the number of tokens for empty rows."""
    if routing.per_token is None:
        return _token(routing, layout)
    return layout.source // routing.per_token


def _token(routing: Routing, layout: Layout, serving: bool = False) -> Int[Array, " rows"]:
    token = jnp.where(routing.serves, routing.token, routing.num_tokens) if serving else routing.token
    return token.at[layout.source].get(mode="fill", fill_value=routing.num_tokens)


def _gather(per_token: int, x, source, row) -> Array:
    return x.at[source // per_token].get(mode="fill", fill_value=0)


def _gather_and_sum(per_token: int, rows, source, row) -> Array:
    def gathered(row) -> Array:
        return rows.at[row].get(mode="fill", fill_value=0).astype(jnp.float32)

    by_token = row.reshape(-1, per_token)
    if per_token > MOST_TERMS:
        return gathered(by_token).sum(1).astype(rows.dtype)
    # A sum of few gathers is one loop over the tokens; a gather of all rows would be written down and read again.
    total = gathered(by_token[:, 0])
    for entry in range(1, per_token):
        total = total + gathered(by_token[:, entry])
    return total.astype(rows.dtype)


_spread = jax.custom_vjp(_gather, nondiff_argnums=(0,))
_collect = jax.custom_vjp(_gather_and_sum, nondiff_argnums=(0,))
_spread.defvjp(
    lambda per_token, x, source, row: (_gather(per_token, x, source, row), (source, row)),
    lambda per_token, saved, rows: (_collect(per_token, rows, *saved), None, None),
)
_collect.defvjp(
    lambda per_token, rows, source, row: (_gather_and_sum(per_token, rows, source, row), (source, row)),
    lambda per_token, saved, x: (_spread(per_token, x, *saved), None, None),
)
