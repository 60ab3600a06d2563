"""Capacity: the only place where tokens are dropped."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from moejax.errors import UserError
from moejax.routing.routing import Routing


def expert_capacity(assignments: Any, num_experts: int, capacity_factor: float) -> Any:
    """Assignments an expert takes at most: the balanced load times ``capacity_factor``, rounded up.

    ``assignments`` is an int, or an Int32 array of a program: in whole numbers both are rounded alike.
    """
    # No product below exceeds 32 bits. Above num_experts, a factor limits nothing.
    factor = min(capacity_factor, num_experts)
    finest = math.isqrt(2**30 // (num_experts * math.ceil(factor)))
    share = (Fraction(factor).limit_denominator(finest) or Fraction(1, finest)) / num_experts
    whole, rest = divmod(assignments, share.denominator)
    return whole * share.numerator - -rest * share.numerator // share.denominator


def _by_position(routing: Routing) -> jax.Array:
    return jnp.zeros_like(routing.combine_weight)


def _by_probability(routing: Routing) -> jax.Array:
    return -jax.lax.stop_gradient(routing.combine_weight)


PRIORITIES = {"position": _by_position, "probability": _by_probability}
"""Who is served first: earlier tokens (GShard, Switch), or larger weights (batch-prioritised, Riquelme et al. 2021)."""


def limit_capacity(
    routing: Routing,
    capacity_factor: float | None,
    priority: str = "position",
    padding_mask: Bool[Array, " tokens"] | None = None,
) -> Routing:
    """Make invalid slots of the assignments beyond an expert's capacity; None drops nothing.

    Position is causal, within the order in which the batch's tokens lie; probability is not: a later token can push
    out an earlier one. ``padding_mask`` is False for padding, whose slots are invalid in ``routing`` already: capacity
    is that of the other tokens.
    """
    if capacity_factor is None:
        return routing
    if priority not in PRIORITIES:
        raise UserError(f"priority is {priority!r}; assignments are served by {' or '.join(PRIORITIES)}.")
    slots = jnp.arange(routing.expert.shape[0], dtype=jnp.int32)
    most = expert_capacity(slots.size, routing.num_experts, capacity_factor)
    if padding_mask is None:
        capacity = most
    else:
        made = routing.valid.sum() if routing.top_k is None else routing.top_k * padding_mask.sum()
        capacity = expert_capacity(made, routing.num_experts, capacity_factor)
    expert, _, order = jax.lax.sort((routing.expert, PRIORITIES[priority](routing), slots), num_keys=2, is_stable=True)
    rank = slots - jnp.searchsorted(expert, expert).astype(jnp.int32)
    kept = jnp.zeros(slots.size, bool).at[order].set(rank < capacity, unique_indices=True)
    return dataclasses.replace(routing.masked(kept), capacity=min(most, routing.num_tokens))
