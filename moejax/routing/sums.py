"""Compute the sums behind a layer's losses and statistics, which add up over microbatches, steps and the mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from moejax.pytree import pytree
from moejax.routing.routing import Routing
from moejax.sharding import on_token_shards


@pytree
@dataclass(frozen=True, kw_only=True)
class RoutingSums:
    """Sums over the tokens of a batch, for one layer or, with a leading axis, for many; ``a + b`` covers both
    batches."""

    tokens: Any
    """Int32: number of tokens without padding."""
    counts: Any
    """Int32[experts]: assignments to each expert before dropping."""
    served: Any
    """Int32: assignments that remain after dropping."""
    probability: Any
    """Float32[experts]: sum of the router's probabilities."""
    squared_logit: Any
    """Float32[experts]: sum of squared logits."""
    squared_logsumexp: Any
    """Float32: sum of squared logsumexp of the logits."""
    sequences: Any
    """Int32: sequences with at least one token that is no padding."""
    sequence_balance: Any
    """Float32: sum over sequences of the balance loss of each, 1 in perfect balance."""

    def __add__(self, other: RoutingSums) -> RoutingSums:
        return jax.tree.map(jnp.add, self, other)


def routing_sums(
    chosen: Routing,
    served: Routing | None = None,
    *,
    sequences: int = 1,
    padding_mask: Bool[Array, " tokens"] | None = None,
) -> RoutingSums:
    """Return the sums of one batch.

    ``chosen`` is the router's output and ``served`` the routing after the capacity limit (None: nothing was dropped).
    ``sequences`` is the number of equally long, consecutive sequences. ``padding_mask`` is False for padding (None: no
    padding).
    """
    if padding_mask is None:
        padding_mask = jnp.ones(chosen.num_tokens, bool)
    kept = padding_mask[chosen.token]
    chosen = chosen.masked(kept)
    served = chosen if served is None else served.masked(kept)
    length = chosen.num_tokens // sequences
    counts = _counts(chosen, sequences)
    probability = jnp.where(padding_mask[:, None], chosen.probabilities, 0.0).reshape(sequences, length, -1).sum(1)
    logits = jnp.where(padding_mask[:, None], chosen.logits, 0.0)
    logsumexp = jax.nn.logsumexp(logits, axis=1)
    return RoutingSums(
        tokens=padding_mask.sum(dtype=jnp.int32),
        counts=counts.sum(0),
        served=served.valid.sum(dtype=jnp.int32),
        probability=probability.sum(0),
        squared_logit=(logits**2).sum(0),
        squared_logsumexp=jnp.where(padding_mask, logsumexp**2, 0.0).sum(),
        sequences=padding_mask.reshape(sequences, length).any(1).sum(dtype=jnp.int32),
        sequence_balance=balance(counts, probability).sum(),
    )


def _counts(routing: Routing, sequences: int) -> Int[Array, "sequences experts"]:
    def of(sequence: Array, expert: Array, sequences: int) -> Array:
        return jnp.zeros((sequences, routing.num_experts), jnp.int32).at[sequence, expert].add(1, mode="drop")

    if routing.top_k is None:
        return of(routing.token // (routing.num_tokens // sequences), routing.expert, sequences)
    here = routing.expert.reshape(sequences, -1)
    return on_token_shards(lambda expert: of(jnp.arange(len(expert))[:, None], expert, len(expert)), here)


def load_shares(counts: Array) -> Float[Array, "*batch experts"]:
    """Return each expert's share of all assignments, from counts of any type; 0 without assignments."""
    load = counts.astype(jnp.float32)
    total = load.sum(-1, keepdims=True)
    return load / jnp.where(total > 0, total, 1.0)


def balance(counts: Array, probability: Float[Array, "*batch experts"]) -> Float[Array, "*batch"]:
    """Return E · sum over experts of (share of assignments) · (share of probability): 1 if either is shared equally.

    Fedus et al. 2022 (Switch), Eq. 4–6, with shares of all assignments instead of tokens, so that the scale is the same
    for every k. The gradient flows through the probabilities alone.
    """
    load = jax.lax.stop_gradient(load_shares(counts))
    total = probability.sum(-1, keepdims=True)
    # The probabilities of a token sum to 1, so only padding has a total of 0.
    share = probability / jnp.where(total > 0, total, 1.0)
    return load.shape[-1] * (load * share).sum(-1)
