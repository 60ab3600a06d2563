"""Permute token rows into expert order, and back.

Both operations are gathers. If each token has the same number of slots, their gradients are gathers with the inverse
permutation instead of scatters.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from moejax.pytree import pytree

MOST_TERMS = 8
"""Maximum number of slots per token that are gathered and added one by one."""


@pytree
@dataclass(frozen=True, kw_only=True)
class Layout:
    """A one-to-one map between assignments and rows; rows may be empty, and invalid slots have no row."""

    source: Any
    """Int32[rows]: assignment of each row, or the number of assignments if the row is empty."""
    row: Any
    """Int32[assignments]: row of each assignment, or the number of rows for an invalid slot."""
    offsets: Any
    """Int32[experts + 1]: index of each expert's first assignment in expert order, then the index of the first invalid
    slot."""
    token: Any
    """Int32[rows]: token of each row, or the number of tokens for unused rows; None if ``top_k`` determines it."""
    num_tokens: int = field(metadata={"static": True})
    top_k: int | None = field(metadata={"static": True})
    """Slots per token if every token has equally many and slots are ordered by token; else None."""


def permute(x: Float[Array, "tokens n"], layout: Layout) -> Float[Array, "rows n"]:
    """Return each row's token; zeros in empty rows."""
    if layout.top_k is None:
        # Gather in float32, so that the gradient sums a token's rows in float32.
        rows = x.astype(jnp.float32).at[layout.token].get(mode="fill", fill_value=0)
        return rows.astype(x.dtype)
    return _permute(layout.top_k, x, layout.source, layout.row)


def unpermute(rows: Float[Array, "rows n"], layout: Layout) -> Float[Array, "tokens n"]:
    """Return each token's sum over its rows, the transpose of ``permute``."""
    if layout.top_k is None:
        total = jnp.zeros((layout.num_tokens, rows.shape[1]), jnp.float32)
        return total.at[layout.token].add(rows.astype(jnp.float32), mode="drop").astype(rows.dtype)
    return _unpermute(layout.top_k, rows, layout.source, layout.row)


def permute_weights(values: Float[Array, " assignments"], layout: Layout) -> Float[Array, " rows"]:
    """Return the value of each row's assignment; 0 in empty rows."""
    return _permute(1, values[:, None], layout.source, layout.row)[:, 0]


def token_of_rows(layout: Layout) -> Int[Array, " rows"]:
    """Return each row's token, or the number of tokens for empty rows."""
    return layout.token if layout.top_k is None else layout.source // layout.top_k


def _gather(top_k: int, x: Array, source: Array, row: Array) -> Array:
    return x.at[source // top_k].get(mode="fill", fill_value=0)


def _gather_and_sum(top_k: int, rows: Array, source: Array, row: Array) -> Array:
    def gathered(row: Array) -> Array:
        return rows.at[row].get(mode="fill", fill_value=0).astype(jnp.float32)

    by_token = row.reshape(-1, top_k)
    if top_k > MOST_TERMS:
        return gathered(by_token).sum(1).astype(rows.dtype)
    # XLA compiles a sum of a few gathers to one loop over tokens; it would write a gather of all rows to memory and
    # read it again.
    total = gathered(by_token[:, 0])
    for slot in range(1, top_k):
        total = total + gathered(by_token[:, slot])
    return total.astype(rows.dtype)


_permute = jax.custom_vjp(_gather, nondiff_argnums=(0,))
_unpermute = jax.custom_vjp(_gather_and_sum, nondiff_argnums=(0,))
_permute.defvjp(
    lambda top_k, x, source, row: (_gather(top_k, x, source, row), (source, row)),
    lambda top_k, saved, rows: (_unpermute(top_k, rows, *saved), None, None),
)
_unpermute.defvjp(
    lambda top_k, rows, source, row: (_gather_and_sum(top_k, rows, source, row), (source, row)),
    lambda top_k, saved, x: (_permute(top_k, x, *saved), None, None),
)
