"""Each row travels to the device of its expert and back, with no gaps between rows.

``moejax.kernels.ragged_all_to_all`` says where that is fast. Only what arrives on a device has its bound, so two
devices may share a load for which the buffers of ``all_to_all`` are too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from moejax.kernels.permutation import permute, permute_weights, unpermute
from moejax.kernels.ragged_all_to_all import ragged_all_to_all
from moejax.pytree import pytree
from moejax.routing.communication.shard import Communication, Shard, numbered_here, of_rows
from moejax.routing.layout import by_expert
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT


@pytree
@dataclass(frozen=True)
class RaggedAllToAll(Communication):
    """One buffer for all rows that arrive."""

    layout: Any
    loads: Any
    """Int32[devices, devices, experts]: loads of all experts from all devices, by sender, receiver, expert there."""
    slots: int = field(metadata={"static": True})
    buffer: int = field(metadata={"static": True})

    @classmethod
    def of(cls, routing: Routing, shard: Shard) -> RaggedAllToAll:
        devices, slots = shard.expert_devices, routing.expert.shape[0]
        layout = by_expert(numbered_here(routing, shard.tokens))
        loads = lax.all_gather(jnp.diff(layout.offsets), EXPERT).reshape(devices, devices, shard.experts)
        return cls(layout, loads, slots, min(math.ceil(shard.buffer_factor * slots), devices * slots))

    @property
    def rows_between(self) -> Int[Array, "devices devices"]:
        """Rows from each device to each."""
        return self.loads.sum(axis=2)

    @property
    def fits(self) -> Bool[Array, ""]:
        """Return whether no device of the group receives more than fits; each device knows all loads."""
        return self.rows_between.sum(axis=0).max() <= self.buffer

    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Rows of this device's experts, from all devices of the group."""
        ends = jnp.cumsum(self.loads[:, lax.axis_index(EXPERT)].reshape(-1))
        slot = jnp.arange(self.buffer, dtype=jnp.int32)
        expert = jnp.searchsorted(ends, slot, side="right").astype(jnp.int32) % self.loads.shape[2]
        expert = jnp.where(slot < ends[-1], expert, self.loads.shape[2])
        rows, weight = (
            ragged_all_to_all(values, self.rows_between, self.buffer, EXPERT)
            for values in (permute(x, self.layout), permute_weights(combine_weight, self.layout))
        )
        return rows, of_rows(expert, weight, self.slots, self.loads.shape[2])

    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Each token's sum over its rows, which have come back."""
        back = ragged_all_to_all(y, self.rows_between.T, self.slots, EXPERT)
        return unpermute(back, self.layout)
