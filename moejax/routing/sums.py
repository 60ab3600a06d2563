"""Compute sums over a layer's routing, and losses and statistics from these sums.

Sums add up over microbatches, steps and the mesh, so losses and statistics do not depend on how a batch is split.
"""

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
    """Sums over a batch's tokens, for one layer or, with a leading axis, several layers. ``a + b`` are the sums over
    both batches."""

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
    """Int32: number of sequences with at least one token that is not padding."""
    sequence_balance: Any
    """Float32: sum of the sequences' balance losses; each is 1 in perfect balance."""

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
    """Return E · sum over experts of (share of assignments) · (share of probability), which is 1 if one of the shares
    is uniform.

    This is Eq. 4–6 of Fedus et al. 2022 (Switch), with shares of all assignments instead of tokens: the scale is thus
    the same for every k. Only the probabilities have gradients.
    """
    load = jax.lax.stop_gradient(load_shares(counts))
    total = probability.sum(-1, keepdims=True)
    # The probabilities of a token sum to 1, so only padding has a total of 0.
    share = probability / jnp.where(total > 0, total, 1.0)
    return load.shape[-1] * (load * share).sum(-1)


def balance_loss(sums: RoutingSums, loads: Array | None = None) -> Float[Array, "*layers"]:
    """Return E · sum over experts of (share of assignments) · (mean probability); 1 in perfect balance, for every k.

    Fedus et al. 2022 (Switch), Eq. 4–6. By default the loss balances each microbatch. ``loads``, a number per layer and
    expert, replaces the counts of ``sums``; only their shares matter. With the loads of all microbatches of a step, the
    loss balances the whole batch (the global-batch balance of Qiu et al. 2025). Gradients of microbatches then add up
    to the whole batch's gradient.
    """
    return balance(sums.counts if loads is None else loads, sums.probability)


def sequence_balance_loss(sums: RoutingSums) -> Float[Array, "*layers"]:
    """Return the mean balance loss of non-empty sequences (DeepSeek-V3 2024, Eq. 17–20), 1 in perfect balance."""
    return sums.sequence_balance / jnp.maximum(sums.sequences, 1).astype(jnp.float32)


def router_z_loss(sums: RoutingSums) -> Float[Array, "*layers"]:
    """Return the mean over tokens of logsumexp(logits)², which keeps logits small (ST-MoE, Zoph et al. 2022, Eq. 5)."""
    return sums.squared_logsumexp / jnp.maximum(sums.tokens, 1).astype(jnp.float32)


def statistics(
    sums: RoutingSums, bias: Float[Array, "*layers experts"] | None = None
) -> dict[str, Float[Array, "*layers"]]:
    """Return scalar statistics, keyed by name, of one layer or of several layers along a leading axis.

    Loads are relative to the balanced load, so 1 means balance for any number of experts:

    - ``load_min``, ``load_max``: load of the least and the most loaded expert
    - ``load_cv``: standard deviation of the load over experts (its mean is 1)
    - ``max_violation``: ``load_max`` - 1 (MaxVio of Wang et al. 2024, auxiliary-loss-free balancing)
    - ``load_entropy``: entropy of the load / log(experts); 1 in balance, 0 if one expert has all tokens
    - ``dead_experts``: experts without a single token
    - ``dropped_share``: share of assignments that the capacity limit dropped
    - ``logit_rms``: root mean square of the router's logits
    - ``bias_range``: largest minus smallest routing bias; only with a ``bias``
    """
    counts = sums.counts.astype(jnp.float32)
    experts = counts.shape[-1]
    made = jnp.maximum(counts.sum(-1), 1.0)
    share = counts / made[..., None]
    load = experts * share
    values = {
        "load_min": load.min(-1),
        "load_max": load.max(-1),
        "load_cv": load.std(-1),
        "max_violation": load.max(-1) - 1.0,
        "load_entropy": -(share * jnp.log(jnp.maximum(share, 1e-20))).sum(-1) / jnp.log(float(max(experts, 2))),
        "dead_experts": (counts == 0).sum(-1).astype(jnp.float32),
        # Subtract as integers: beyond 2^24 assignments, rounding may make floats differ although nothing was dropped.
        "dropped_share": (sums.counts.sum(-1) - sums.served).astype(jnp.float32) / made,
        "logit_rms": jnp.sqrt(sums.squared_logit.sum(-1) / (experts * jnp.maximum(sums.tokens, 1).astype(jnp.float32))),
    }
    return values if bias is None else {**values, "bias_range": bias.max(-1) - bias.min(-1)}
