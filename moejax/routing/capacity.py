"""Capacity: the only place where tokens are dropped."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp

from moejax.errors import UserError
from moejax.routing.routing import Routing


def expert_capacity(assignments: int, num_experts: int, capacity_factor: float) -> int:
    """Assignments an expert takes at most: the balanced load times ``capacity_factor``, rounded up."""
    return math.ceil(round(capacity_factor * assignments / num_experts, 9))


def _by_position(routing: Routing) -> jax.Array:
    return jnp.zeros_like(routing.combine_weight)


def _by_probability(routing: Routing) -> jax.Array:
    return -jax.lax.stop_gradient(routing.combine_weight)


PRIORITIES = {"position": _by_position, "probability": _by_probability}
"""Who is served first: earlier tokens (GShard, Switch), or larger weights (batch-prioritised, Riquelme et al. 2021)."""


def limit_capacity(routing: Routing, capacity_factor: float | None, priority: str = "position") -> Routing:
    """Make invalid slots of the assignments beyond an expert's capacity; None drops nothing.

    Position is causal, within the order in which the batch's tokens lie; probability is not: a later token can push
    out an earlier one.
    """
    if capacity_factor is None:
        return routing
    if priority not in PRIORITIES:
        raise UserError(f"priority is {priority!r}; assignments are served by {' or '.join(PRIORITIES)}.")
    assignments = routing.expert.shape[0]
    capacity = expert_capacity(assignments, routing.num_experts, capacity_factor)
    slots = jnp.arange(assignments, dtype=jnp.int32)
    expert, _, order = jax.lax.sort((routing.expert, PRIORITIES[priority](routing), slots), num_keys=2, is_stable=True)
    rank = slots - jnp.searchsorted(expert, expert).astype(jnp.int32)
    kept = jnp.zeros(assignments, bool).at[order].set(rank < capacity, unique_indices=True)
    return dataclasses.replace(routing.masked(kept), capacity=min(capacity, routing.num_tokens))
