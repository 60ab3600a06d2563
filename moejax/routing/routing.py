"""Define the output of every router, which is the only input of losses, statistics and dispatchers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from moejax.kernels.saved_names import choice
from moejax.pytree import pytree
from moejax.sharding import on_token_shards


@pytree
@dataclass(frozen=True, kw_only=True)
class Routing:
    """Assignments of tokens to experts, and the router scores behind them.

    A slot holds one assignment. It is invalid if no expert computes it: a dropped assignment, an unused slot or a
    padding token. An invalid slot's ``expert`` is ``num_experts`` and its ``combine_weight`` is 0; dispatchers skip it.
    """

    token: Any
    """Int[assignments]: row of the token."""
    expert: Any
    """Int[assignments]: the token's expert, or ``num_experts`` for an invalid slot."""
    combine_weight: Any
    """Float32[assignments]: weight of the expert's output in the token's sum."""
    probabilities: Any
    """Float32[tokens, experts]: the router's scores, which sum to 1 for each token; None inside a dispatch."""
    logits: Any
    """Float32[tokens, experts]: output of the router's linear map; None inside a dispatch."""
    num_tokens: int = field(metadata={"static": True})
    num_experts: int = field(metadata={"static": True})
    tokens_per_expert: int = field(metadata={"static": True})
    """Number of assignments per expert with balanced load; kernels derive block sizes from it."""
    top_k: int | None = field(default=None, metadata={"static": True})
    """Slots per token if every token has equally many and slots are ordered by token; else None."""
    capacity: int | None = field(default=None, metadata={"static": True})
    """Upper bound on the assignments of an expert; None if only the number of tokens is known."""
    buffer_rows: int | None = field(default=None, metadata={"static": True})
    """Number of rows to compute at once if most slots are invalid; further rows are computed in chunks."""

    @property
    def valid(self) -> Bool[Array, " assignments"]:
        """Return for each slot whether an expert computes it."""
        return self.expert < self.num_experts

    def masked(self, valid: Bool[Array, " assignments"]) -> Routing:
        """Return the routing with slots marked invalid where ``valid`` is False."""
        return dataclasses.replace(
            self,
            expert=jnp.where(valid, self.expert, self.num_experts),
            combine_weight=jnp.where(valid, self.combine_weight, 0.0),
        )

    def counts(self) -> Int[Array, " experts"]:
        """Return the number of assignments of each expert."""
        return jnp.zeros(self.num_experts, jnp.int32).at[self.expert].add(1, mode="drop")


def top_k_indices(
    scores: Float[Array, "tokens experts"], top_k: int, bias: Float[Array, " experts"] | None = None
) -> Int[Array, "tokens top_k"]:
    """Return the ``top_k`` experts with the highest score + ``bias``, highest first."""
    return top_k_scores(scores if bias is None else scores + bias, top_k)[1]


def top_k_scores(
    scores: Float[Array, "tokens ... n"], k: int
) -> tuple[Float[Array, "tokens ... k"], Int[Array, "tokens ... k"]]:
    """Return the ``k`` largest values of the last axis and their indices, largest first, without gradients."""

    def local(scores: Array) -> tuple[Array, Array]:
        values, indices = jax.lax.top_k(scores, k)
        return values, indices

    values, indices = on_token_shards(local, jax.lax.stop_gradient(scores))
    return values, choice(indices)


def gather_scores(
    scores: Float[Array, "tokens experts"], expert: Int[Array, "tokens top_k"]
) -> Float[Array, "tokens top_k"]:
    """Return the scores of the selected experts."""
    return jnp.take_along_axis(scores, expert, axis=1, mode="clip")


def token_choice(
    logits: Float[Array, "tokens experts"],
    probabilities: Float[Array, "tokens experts"],
    expert: Int[Array, "tokens top_k"],
    combine_weight: Float[Array, "tokens top_k"],
) -> Routing:
    """Build the routing for tokens that select their own experts."""
    tokens, top_k = expert.shape
    return Routing(
        token=jnp.repeat(jnp.arange(tokens, dtype=jnp.int32), top_k),
        expert=expert.reshape(-1).astype(jnp.int32),
        combine_weight=combine_weight.reshape(-1),
        probabilities=probabilities,
        logits=logits,
        num_tokens=tokens,
        num_experts=logits.shape[1],
        tokens_per_expert=tokens * top_k // logits.shape[1],
        top_k=top_k,
    )
