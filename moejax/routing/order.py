"""Assignments in the order of their experts, and rows moved there and back.

Both moves are gathers, and so are their gradients: where each token has the same number of entries, the gradient of
a gather is a gather by the inverse permutation instead of a scatter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from moejax.routing.routing import Routing


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ExpertOrder:
    """A stable sort of assignments by expert, phantoms last."""

    order: Any
    """Int32[assignments]: assignment at each place."""
    place: Any
    """Int32[assignments]: place of each assignment."""
    offsets: Any
    """Int32[experts + 1]: first place of each expert, then of the phantoms."""


def expert_order(routing: Routing, num_experts: int) -> ExpertOrder:
    """Sort the assignments by expert; equal experts keep their order."""
    assignments = routing.expert.shape[0]
    slots = jnp.arange(assignments, dtype=jnp.int32)
    if (num_experts + 1) * assignments < 2**31:
        # One sort of one integer that holds both is the fastest on every platform.
        keys = jnp.sort(routing.expert * assignments + slots)
        order, expert = keys % assignments, keys // assignments
    else:
        expert, order = jax.lax.sort((routing.expert, slots), num_keys=1, is_stable=True)
    place = jnp.zeros(assignments, jnp.int32).at[order].set(slots, unique_indices=True, mode="promise_in_bounds")
    offsets = jnp.searchsorted(expert, jnp.arange(num_experts + 1, dtype=jnp.int32)).astype(jnp.int32)
    return ExpertOrder(order, place, offsets)


def _gather(per_token: int, x, order, place) -> Array:
    """Row ``order[i] // per_token`` of ``x`` at place i."""
    return x.at[order // per_token].get(mode="promise_in_bounds")


def _spread_forward(per_token, x, order, place):
    return _gather(per_token, x, order, place), (order, place)


def _spread_backward(per_token, saved, rows):
    order, place = saved
    return _collect(per_token, rows, order, place), None, None


_spread = jax.custom_vjp(_gather, nondiff_argnums=(0,))
_spread.defvjp(_spread_forward, _spread_backward)


def _gather_and_sum(per_token: int, rows, order, place) -> Array:
    """For each token the sum of its rows: the transpose of ``_gather``."""
    gathered = rows.at[place].get(mode="promise_in_bounds")
    gathered = gathered.reshape(-1, per_token, rows.shape[1]).astype(jnp.float32)
    return gathered.sum(1).astype(rows.dtype)


def _collect_forward(per_token, rows, order, place):
    return _gather_and_sum(per_token, rows, order, place), (order, place)


def _collect_backward(per_token, saved, x):
    order, place = saved
    return _spread(per_token, x, order, place), None, None


_collect = jax.custom_vjp(_gather_and_sum, nondiff_argnums=(0,))
_collect.defvjp(_collect_forward, _collect_backward)


def spread(x: Array, routing: Routing, order: ExpertOrder) -> Array:
    """Rows of the tokens in the order of the experts, one for each assignment; phantoms get rows too."""
    if routing.per_token is None:
        return x.at[routing.token[order.order]].get(mode="promise_in_bounds")
    return _spread(routing.per_token, x, order.order, order.place)


def collect(rows: Array, routing: Routing, order: ExpertOrder) -> Array:
    """For each token the sum over its assignments of rows that lie in the order of the experts."""
    real = jnp.arange(rows.shape[0]) < order.offsets[-1]
    rows = jnp.where(real[:, None], rows, jnp.zeros((), rows.dtype))
    if routing.per_token is None:
        tokens = routing.token[order.order]
        total = jnp.zeros((routing.num_tokens, rows.shape[1]), jnp.float32).at[tokens].add(rows.astype(jnp.float32))
        return total.astype(rows.dtype)
    return _collect(routing.per_token, rows, order.order, order.place)


def in_order(values: Array, order: ExpertOrder) -> Array:
    """Values of the assignments in the order of the experts."""
    return _spread(1, values[:, None], order.order, order.place)[:, 0]
