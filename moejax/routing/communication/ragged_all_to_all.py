"""Each row travels to the device of its expert and back, with no gaps between rows.

``moejax.kernels.ragged_all_to_all`` says where that is fast. Only what arrives on a device has its bound, so two
devices may share a load for which the buffers of ``all_to_all`` are too small.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float

from moejax.kernels.permutation import permute, permute_weights, unpermute
from moejax.kernels.ragged_all_to_all import ragged_all_to_all
from moejax.routing.communication.shard import Communication, Shard, numbered_here, of_rows
from moejax.routing.layout import by_expert
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT


class RaggedAllToAll(Communication):
    """One buffer for all rows that arrive."""

    def __init__(self, routing: Routing, shard: Shard):
        devices, self._slots = shard.expert_devices, routing.expert.shape[0]
        self._experts = shard.experts
        self._buffer = min(math.ceil(shard.buffer_factor * self._slots), devices * self._slots)
        self._layout = by_expert(numbered_here(routing, shard.tokens))
        # Loads of all experts from all devices: [from, to, expert there].
        loads = lax.all_gather(jnp.diff(self._layout.offsets), EXPERT)
        self._loads = loads.reshape(devices, devices, shard.experts)
        self._rows_between = self._loads.sum(axis=2)

    @property
    def fits(self) -> Bool[Array, ""]:
        """Whether no device of the group gets more than fits; each knows all loads."""
        return self._rows_between.sum(axis=0).max() <= self._buffer

    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Rows of this device's experts, from all devices of the group."""
        ends = jnp.cumsum(self._loads[:, lax.axis_index(EXPERT)].reshape(-1))
        slot = jnp.arange(self._buffer, dtype=jnp.int32)
        expert = jnp.searchsorted(ends, slot, side="right").astype(jnp.int32) % self._experts
        expert = jnp.where(slot < ends[-1], expert, self._experts)
        rows, weight = (
            ragged_all_to_all(values, self._rows_between, self._buffer, EXPERT)
            for values in (permute(x, self._layout), permute_weights(combine_weight, self._layout))
        )
        return rows, of_rows(expert, weight, self._slots, self._experts)

    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Each token's sum over its rows, which have come back."""
        back = ragged_all_to_all(y, self._rows_between.T, self._slots, EXPERT)
        return unpermute(back, self._layout)
