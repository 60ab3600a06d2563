"""A device's share of tokens and experts, and the interface of a communication method."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from moejax.routing.routing import Routing
from moejax.sharding import EXPERT


class Shard(NamedTuple):
    """A device's part of an MoE block."""

    mesh_sizes: tuple[tuple[str, int], ...]
    """Names and sizes of the mesh's axes."""
    tokens: int
    """Tokens of this device."""
    experts: int
    """Experts of this device."""
    buffer_factor: float
    """Size of buffers, as a multiple of what a balanced routing needs."""

    @property
    def mesh(self) -> dict[str, int]:
        """Sizes of the mesh's axes."""
        return dict(self.mesh_sizes)

    @property
    def expert_devices(self) -> int:
        """Devices along the ``expert`` axis, which share a group's tokens and all experts."""
        return self.mesh.get(EXPERT, 1)


class Communication(ABC):
    """A way of communicating, for the routing of this device's tokens: a pytree, which has no gradient."""

    @classmethod
    @abstractmethod
    def of(cls, routing: Routing, shard: Shard) -> Communication:
        """Make the plan that depends on the routing alone."""

    @property
    def fits(self) -> Bool[Array, ""] | None:
        """True if the buffers are large enough, equal on all devices that communicate; None if they always are."""
        return None

    @abstractmethod
    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Rows that reach this device, and their routing to its experts."""

    @abstractmethod
    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Outputs of this device's experts brought back to their tokens, and added up there."""


def numbered_here(routing: Routing, tokens: int) -> Routing:
    """The slots of this device's own tokens, numbered as they are here; they lie token after token."""
    slots = routing.expert.shape[0]
    token = jnp.arange(slots, dtype=jnp.int32) // (slots // tokens)
    return dataclasses.replace(routing, token=token, num_tokens=tokens)


def of_rows(expert: Array, combine_weight: Array, slots: int, experts: int) -> Routing:
    """The routing of rows that came from other devices, each for one expert; in balance ``slots`` of them."""
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
