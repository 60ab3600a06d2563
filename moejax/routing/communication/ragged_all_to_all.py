"""Exchange rows with the devices of their experts, without gaps between rows.

See ``moejax.kernels.ragged_all_to_all`` for where that is fast. Only the total that arrives on a device is limited, so
two devices may exchange a load that exceeds the pairwise buffers of ``all_to_all``.
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
    """A method with one buffer for all arriving rows."""

    layout: Any
    loads: Any
    """Int32[devices, devices, experts]: expert loads by sender, receiver and local expert of the receiver."""
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
        """Return the number of rows from each device to each."""
        return self.loads.sum(axis=2)

    @property
    def fits(self) -> Bool[Array, ""]:
        """Return whether every device of the group has space for the rows it receives; each device knows all loads."""
        return self.rows_between.sum(axis=0).max() <= self.buffer

    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Return the rows of this device's experts from all devices of the group."""
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
        """Return each token's sum over its rows after sending them back."""
        back = ragged_all_to_all(y, self.rows_between.T, self.slots, EXPERT)
        return unpermute(back, self.layout)
