"""Send tokens to their experts' devices along the ``expert`` axis of a mesh, and return the outputs.

A communication method is built from a device's routing and its ``Shard``. All code here runs on one device, inside
``shard_map``. Methods never drop tokens, so all give the same results.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from moejax.kernels.permutation import permute, permute_weights, unpermute
from moejax.kernels.ragged_all_to_all import ragged_all_to_all
from moejax.pytree import pytree
from moejax.routing.layout import by_expert, by_slot
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT, GROUP_AXES


class Shard(NamedTuple):
    """A device's part of an MoE block."""

    mesh_sizes: tuple[tuple[str, int], ...]
    """Names and sizes of the mesh axes."""
    tokens: int
    """Number of tokens on this device."""
    experts: int
    """Number of experts on this device."""
    buffer_factor: float
    """Buffer size, as a multiple of the rows of a balanced routing."""

    @property
    def mesh(self) -> dict[str, int]:
        """Return the sizes of the mesh axes, keyed by axis."""
        return dict(self.mesh_sizes)

    @property
    def expert_devices(self) -> int:
        """Return the number of devices along the ``expert`` axis, the size of a group. A group shares its tokens and
        all experts."""
        return self.mesh.get(EXPERT, 1)


class Communication(ABC):
    """A communication method for the routing of this device's tokens, as a pytree without gradients."""

    @classmethod
    @abstractmethod
    def of(cls, routing: Routing, shard: Shard) -> Communication:
        """Build the method from the routing and the shard."""

    @property
    def fits(self) -> Bool[Array, ""] | None:
        """Return whether the buffers are large enough, with the same value on all communicating devices. None means
        always."""
        return None

    @abstractmethod
    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Return the rows that this device receives, and their routing to its experts."""

    @abstractmethod
    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Send the outputs of this device's experts back to their tokens, and return each token's sum."""


def numbered_here(routing: Routing, tokens: int) -> Routing:
    """Return the routing of this device's own tokens, with local token numbers, ordered by token."""
    slots = routing.expert.shape[0]
    token = jnp.arange(slots, dtype=jnp.int32) // (slots // tokens)
    return dataclasses.replace(routing, token=token, num_tokens=tokens)


def of_rows(expert: Array, combine_weight: Array, slots: int, experts: int) -> Routing:
    """Return the routing of received rows, each with one expert. With balanced load, a device receives ``slots``
    rows."""
    return Routing(
        token=jnp.arange(expert.shape[0], dtype=jnp.int32),
        expert=expert,
        combine_weight=combine_weight,
        probabilities=None,
        logits=None,
        num_tokens=expert.shape[0],
        num_experts=experts,
        tokens_per_expert=slots // experts,
        top_k=1,
    )


# Stack parts along a leading axis, here and in the gradients. If parts of a dimension do not fill whole memory tiles,
# XLA's TPU compiler pads them for a scatter, or all-reduces the whole array, which sends twice the bytes.


@pytree
@dataclass(frozen=True)
class AllGather(Communication):
    """A method in which each device gathers its group's tokens and computes its own experts. Many rows are computed in
    chunks."""

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
        # Most of these slots belong to experts on other devices.
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
        """Return the group's routing with local token and expert numbers; slots of other devices' experts are
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
        """Return this device's index along several axes, in the order in which they shard an array."""
        present = tuple(axis for axis in axes if axis in self.shard.mesh)
        return lax.axis_index(present) if present else 0


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
        """Return whether the buffers of all devices in the group are large enough. All devices must take the same
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
        """Send the rows back to their tokens' devices, and return each token's sum over its rows."""
        return unpermute(self._exchange(y), self.layout)

    def _exchange(self, values: Array) -> Array:
        rows = values.reshape(self.shard.expert_devices, self.buffer, *values.shape[1:])
        return lax.all_to_all(rows, EXPERT, split_axis=0, concat_axis=0).reshape(values.shape)


@pytree
@dataclass(frozen=True)
class RaggedAllToAll(Communication):
    """A method with one buffer for all received rows, which are contiguous.

    ``moejax.kernels.ragged_all_to_all`` describes on which platforms it is fast. Only the total number of rows that a
    device receives is limited, so two devices may exchange more rows than the pairwise buffers of ``AllToAll`` allow.
    """

    layout: Any
    loads: Any
    """Int32[devices, devices, experts]: numbers of rows by sender, receiver and the receiver's local expert."""
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
        """Return the number of rows from each device to each device."""
        return self.loads.sum(axis=2)

    @property
    def fits(self) -> Bool[Array, ""]:
        """Return whether every device in the group has space for the rows that it receives. Each device knows all
        ``loads``."""
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
        """Send the rows back to their tokens' devices, and return each token's sum over its rows."""
        back = ragged_all_to_all(y, self.rows_between.T, self.slots, EXPERT)
        return unpermute(back, self.layout)


COMMUNICATION: dict[str, type[Communication]] = {
    "all_gather": AllGather,
    "all_to_all": AllToAll,
    "ragged_all_to_all": RaggedAllToAll,
}
"""Communication methods, keyed by ``Runtime.expert_communication``."""
