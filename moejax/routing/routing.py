"""What a router returns: which tokens go to which experts, and with what weight.

A routing is the matrix tokens x experts, kept sparse as three flat arrays. Token choice fills tokens·top_k entries,
expert choice experts·capacity; losses, statistics and dispatchers read the same arrays whoever wrote them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from moejax.pytree import pytree
from moejax.routing.token_shards import where_tokens_lie


@pytree
@dataclass(frozen=True, kw_only=True)
class Routing:
    """Assignments of tokens to experts, and the router's opinion they were taken from.

    An entry that serves nobody (an assignment dropped, a slot not used, a padding token) is a phantom: its ``expert``
    is the number of experts, its ``gate`` is 0. Dispatchers skip phantoms.
    """

    token: Any
    """Int[assignments]: row of the token."""
    expert: Any
    """Int[assignments]: expert that serves it, or the number of experts for a phantom."""
    gate: Any
    """Float32[assignments]: weight of the expert's output in the token's sum."""
    probabilities: Any
    """Float32[tokens, experts]: the router's scores, which sum to 1 for each token; None inside a dispatch."""
    logits: Any
    """Float32[tokens, experts]: what the router's linear map gave; None inside a dispatch."""
    num_tokens: int = field(metadata={"static": True})
    num_experts: int = field(metadata={"static": True})
    balanced_load: int = field(metadata={"static": True})
    """Assignments of an expert when all have as many; kernels size their blocks by it."""
    per_token: int | None = field(default=None, metadata={"static": True})
    """Entries each token has, if all have as many and they lie token after token; None if they lie otherwise."""
    capacity: int | None = field(default=None, metadata={"static": True})
    """A number of assignments that no expert exceeds; None if nothing better than the number of tokens is known."""
    room: int | None = field(default=None, metadata={"static": True})
    """Entries that are worth serving at once, where most are phantoms; those beyond it are served in turns."""

    @property
    def serves(self) -> Bool[Array, " assignments"]:
        """Entries that are not phantoms."""
        return self.expert < self.num_experts

    def keep(self, keep: Bool[Array, " assignments"]) -> Routing:
        """The same routing with the other entries made phantoms."""
        return dataclasses.replace(
            self,
            expert=jnp.where(keep, self.expert, self.num_experts),
            gate=jnp.where(keep, self.gate, 0.0),
        )

    def counts(self) -> Int[Array, " experts"]:
        """Assignments of each expert."""
        return jnp.zeros(self.num_experts, jnp.int32).at[self.expert].add(1, mode="drop")


def choose(
    scores: Float[Array, "tokens experts"], top_k: int, bias: Float[Array, " experts"] | None = None
) -> Int[Array, "tokens top_k"]:
    """The ``top_k`` experts of highest score, best first; ``bias`` moves the choice and never the gate."""
    return best(scores if bias is None else scores + bias, top_k)[1]


def best(
    scores: Float[Array, "tokens ... n"], k: int
) -> tuple[Float[Array, "tokens ... k"], Int[Array, "tokens ... k"]]:
    """The ``k`` largest of the last axis, and where they are, best first; no gradient flows."""

    def here(scores: Array) -> tuple[Array, Array]:
        values, places = jax.lax.top_k(scores, k)
        return values, places

    return where_tokens_lie(here, jax.lax.stop_gradient(scores))


def pick(scores: Float[Array, "tokens experts"], expert: Int[Array, "tokens top_k"]) -> Float[Array, "tokens top_k"]:
    """Scores of the chosen experts."""
    return jnp.take_along_axis(scores, expert, axis=1, mode="clip")


def normalised(scores: Float[Array, "tokens n"]) -> Float[Array, "tokens n"]:
    """Scores scaled to sum to 1 for each token."""
    return scores / (scores.sum(axis=1, keepdims=True) + 1e-20)


def token_choice(
    logits: Float[Array, "tokens experts"],
    probabilities: Float[Array, "tokens experts"],
    expert: Int[Array, "tokens top_k"],
    gate: Float[Array, "tokens top_k"],
) -> Routing:
    """The routing in which every token has chosen its own experts."""
    tokens, top_k = expert.shape
    return Routing(
        token=jnp.repeat(jnp.arange(tokens, dtype=jnp.int32), top_k),
        expert=expert.reshape(-1).astype(jnp.int32),
        gate=gate.reshape(-1),
        probabilities=probabilities,
        logits=logits,
        num_tokens=tokens,
        num_experts=logits.shape[1],
        balanced_load=tokens * top_k // logits.shape[1],
        per_token=top_k,
    )
