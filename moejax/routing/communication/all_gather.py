"""Gather all tokens of a group on each of its devices, and reduce-scatter the sums."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from moejax.pytree import pytree
from moejax.routing.communication.shard import Communication, Shard
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT, GROUP_AXES

# Parts are stacked along a leading axis, here and in the gradients. If the parts of a dimension do not fill whole
# memory tiles, XLA's TPU compiler pads them for a scatter or all-reduces the whole, which sends twice the bytes.


@pytree
@dataclass(frozen=True)
class AllGather(Communication):
    """A method in which each device reads its group's tokens and computes its own experts, in chunks if there are
    many."""

    routing: Any
    shard: Shard = field(metadata={"static": True})

    @classmethod
    def of(cls, routing: Routing, shard: Shard) -> AllGather:
        return cls(routing, shard)

    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Return all tokens of the group."""
        local = self._local_routing(combine_weight)
        # Other devices compute most of these slots.
        slots = local.expert.shape[0]
        buffer = math.ceil(self.shard.buffer_factor * slots / self.shard.expert_devices)
        return self._gathered(x), dataclasses.replace(local, buffer_rows=min(buffer, slots))

    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Sum over the group's devices and return each device's own tokens."""
        sizes = self.shard.mesh
        return lax.psum_scatter(y.reshape(sizes[EXPERT], -1, *y.shape[1:]), EXPERT) if EXPERT in sizes else y

    def _gathered(self, array: Array) -> Array:
        if EXPERT not in self.shard.mesh:
            return array
        return lax.all_gather(array, EXPERT).reshape(-1, *array.shape[1:])

    def _local_routing(self, weight: Array) -> Routing:
        """Return the slots of this device's experts and group of tokens, with local numbers; the other slots are
        invalid."""
        routing, experts = self.routing, self.shard.experts
        num_tokens, expert = self.shard.tokens * self.shard.expert_devices, routing.expert
        if routing.top_k is None:
            token = routing.token - self._index(GROUP_AXES) * num_tokens
        else:
            expert, weight = self._gathered(expert), self._gathered(weight)
            token = jnp.arange(expert.shape[0], dtype=jnp.int32) // routing.top_k
        expert = expert - self._index((EXPERT,)) * experts
        here = (token >= 0) & (token < num_tokens) & (expert >= 0) & (expert < experts)
        return Routing(
            token=jnp.where(here, token, 0),
            expert=expert,
            combine_weight=weight,
            probabilities=None,
            logits=None,
            num_tokens=num_tokens,
            num_experts=experts,
            tokens_per_expert=routing.tokens_per_expert * num_tokens // routing.num_tokens,
            top_k=routing.top_k,
            capacity=routing.capacity,
        ).masked(here)

    def _index(self, axes: tuple[str, ...]) -> Array | int:
        """Return the index of this device along some axes, in the order in which they split an array."""
        present = tuple(axis for axis in axes if axis in self.shard.mesh)
        return lax.axis_index(present) if present else 0
