"""Define a device's share of tokens and experts, and the interface of a communication method."""

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
    """Names and sizes of the mesh axes."""
    tokens: int
    """Number of tokens on this device."""
    experts: int
    """Number of experts on this device."""
    buffer_factor: float
    """Buffer size, as a multiple of the rows of a balanced routing."""

    @property
    def mesh(self) -> dict[str, int]:
        """Return the sizes of the mesh axes."""
        return dict(self.mesh_sizes)

    @property
    def expert_devices(self) -> int:
        """Return the number of devices along the ``expert`` axis, which share a group's tokens and all experts."""
        return self.mesh.get(EXPERT, 1)


class Communication(ABC):
    """A communication method for the routing of this device's tokens: a pytree without gradients."""

    @classmethod
    @abstractmethod
    def of(cls, routing: Routing, shard: Shard) -> Communication:
        """Make the plan that depends on the routing alone."""

    @property
    def fits(self) -> Bool[Array, ""] | None:
        """Return whether the buffers are large enough, equal on all communicating devices; None if they always are."""
        return None

    @abstractmethod
    def dispatch(
        self, x: Float[Array, "tokens model"], combine_weight: Float[Array, " assignments"]
    ) -> tuple[Float[Array, "rows model"], Routing]:
        """Return the rows that reach this device, and their routing to its experts."""

    @abstractmethod
    def combine(self, y: Float[Array, "rows model"]) -> Float[Array, "tokens model"]:
        """Return the outputs of this device's experts to their tokens, and sum them there."""


def numbered_here(routing: Routing, tokens: int) -> Routing:
    """Return the slots of this device's own tokens, numbered locally and ordered by token."""
    slots = routing.expert.shape[0]
    token = jnp.arange(slots, dtype=jnp.int32) // (slots // tokens)
    return dataclasses.replace(routing, token=token, num_tokens=tokens)


def of_rows(expert: Array, combine_weight: Array, slots: int, experts: int) -> Routing:
    """Return the routing of rows received from other devices, one expert each; a balanced load is ``slots`` rows."""
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
