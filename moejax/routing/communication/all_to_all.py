"""Each row travels to the device of its expert and back, in buffers of one size for every pair of devices."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from moejax.kernels.permutation import permute, permute_weights, unpermute
from moejax.routing.communication.shard import Communication, Shard, numbered_here, of_rows
from moejax.routing.layout import by_slot
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT


class AllToAll(Communication):
    """A buffer for each device along the ``expert`` axis."""

    def __init__(self, routing: Routing, shard: Shard):
        devices, slots = shard.expert_devices, routing.expert.shape[0]
        self._routing, self._shard = routing, shard
        self._buffer = min(math.ceil(shard.buffer_factor * slots / devices), slots)
        device = jnp.where(routing.valid, routing.expert // shard.experts, devices)
        to_device = dataclasses.replace(numbered_here(routing, shard.tokens), expert=device, num_experts=devices)
        self._layout = by_slot(to_device, self._buffer)

    @property
    def fits(self) -> Bool[Array, ""]:
        """Whether no device of the group sends another one more than fits: all must take the same way."""
        fits = jnp.diff(self._layout.offsets).max() <= self._buffer
        return lax.pmin(fits.astype(jnp.int32), EXPERT) == 1

    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Rows of this device's experts, from all devices of the group."""
        experts, slots = self._shard.experts, self._routing.expert.shape[0]
        expert = (self._routing.expert % experts).at[self._layout.source]
        expert = self._exchange(expert.get(mode="fill", fill_value=experts))
        weight = self._exchange(permute_weights(combine_weight, self._layout))
        return self._exchange(permute(x, self._layout)), of_rows(expert, weight, slots, experts)

    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Each token's sum over its rows, which have come back."""
        return unpermute(self._exchange(y), self._layout)

    def _exchange(self, values: Array) -> Array:
        rows = values.reshape(self._shard.expert_devices, self._buffer, *values.shape[1:])
        return lax.all_to_all(rows, EXPERT, split_axis=0, concat_axis=0).reshape(values.shape)
