"""Exchange rows with the devices of their experts, in buffers of one size for every pair of devices."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from moejax.kernels.permutation import permute, permute_weights, unpermute
from moejax.pytree import pytree
from moejax.routing.communication.shard import Communication, Shard, numbered_here, of_rows
from moejax.routing.layout import by_slot
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT


@pytree
@dataclass(frozen=True)
class AllToAll(Communication):
    """A method with one buffer for each device along the ``expert`` axis."""

    routing: Any
    layout: Any
    shard: Shard = field(metadata={"static": True})
    buffer: int = field(metadata={"static": True})

    @classmethod
    def of(cls, routing: Routing, shard: Shard) -> AllToAll:
        devices, slots = shard.expert_devices, routing.expert.shape[0]
        buffer = min(math.ceil(shard.buffer_factor * slots / devices), slots)
        device = jnp.where(routing.valid, routing.expert // shard.experts, devices)
        to_device = dataclasses.replace(numbered_here(routing, shard.tokens), expert=device, num_experts=devices)
        return cls(routing, by_slot(to_device, buffer), shard, buffer)

    @property
    def fits(self) -> Bool[Array, ""]:
        """Return whether the buffers of all devices of the group are large enough. All devices must take the same
        branch."""
        fits = jnp.diff(self.layout.offsets).max() <= self.buffer
        return lax.pmin(fits.astype(jnp.int32), EXPERT) == 1

    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Return the rows of this device's experts from all devices of the group."""
        experts, slots = self.shard.experts, self.routing.expert.shape[0]
        expert = (self.routing.expert % experts).at[self.layout.source]
        expert = self._exchange(expert.get(mode="fill", fill_value=experts))
        weight = self._exchange(permute_weights(combine_weight, self.layout))
        return self._exchange(permute(x, self.layout)), of_rows(expert, weight, slots, experts)

    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Return each token's sum over its rows after sending them back."""
        return unpermute(self._exchange(y), self.layout)

    def _exchange(self, values: Array) -> Array:
        rows = values.reshape(self.shard.expert_devices, self.buffer, *values.shape[1:])
        return lax.all_to_all(rows, EXPERT, split_axis=0, concat_axis=0).reshape(values.shape)
