"""Limit the capacity of experts. Tokens are dropped nowhere else."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from moejax.routing.layout import expert_order
from moejax.routing.routing import Routing


def expert_capacity(assignments: Any, num_experts: int, capacity_factor: float) -> Any:
    """Return the maximum number of assignments of an expert: the balanced load times ``capacity_factor``, rounded up.

    ``assignments`` is an int or a traced Int32 array. Integer arithmetic rounds both alike.
    """
    # No product below exceeds 32 bits. A factor above num_experts limits nothing.
    factor = min(capacity_factor, num_experts)
    finest = math.isqrt(2**30 // (num_experts * math.ceil(factor)))
    share = (Fraction(factor).limit_denominator(finest) or Fraction(1, finest)) / num_experts
    whole, rest = divmod(assignments, share.denominator)
    return whole * share.numerator - -rest * share.numerator // share.denominator


def limit_capacity(
    routing: Routing, capacity_factor: float | None, padding_mask: Bool[Array, " tokens"] | None = None
) -> Routing:
    """Mark the assignments beyond an expert's capacity as invalid; a ``capacity_factor`` of None drops nothing.

    Earlier tokens have priority (GShard, Switch), so that no later token displaces them. ``padding_mask`` is False for
    padding, whose slots are already invalid in ``routing``; the capacity is that of the other tokens.
    """
    if capacity_factor is None:
        return routing
    slots = jnp.arange(routing.expert.shape[0], dtype=jnp.int32)
    most = expert_capacity(slots.size, routing.num_experts, capacity_factor)
    if padding_mask is None:
        capacity = most
    else:
        made = routing.valid.sum() if routing.top_k is None else routing.top_k * padding_mask.sum()
        capacity = expert_capacity(made, routing.num_experts, capacity_factor)
    order, offsets = expert_order(routing)
    rank = slots - offsets[routing.expert[order]]
    kept = jnp.zeros(slots.size, bool).at[order].set(rank < capacity, unique_indices=True)
    return dataclasses.replace(routing.masked(kept), capacity=min(most, routing.num_tokens))
