"""Compute the training loss: cross-entropy and the auxiliary losses of the routers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from moejax.architecture import Architecture
from moejax.config import check_fields
from moejax.kernels import cross_entropy
from moejax.model.transformer import Params, unembedding
from moejax.ranges import Scale, Tokens, one_of
from moejax.routing.sums import RoutingSums, balance_loss, router_z_loss, sequence_balance_loss

BALANCE_LOADS = ("batch", "previous_step")
"""Choices of the loads by which the balance loss weighs probabilities."""


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the auxiliary losses, each a mean over mixture layers, and the loads used by the balance loss."""

    balance: Scale | None = None
    """Weight of the balance loss over the whole batch of a step, independent of microbatches and mesh. The loss is 1
    when every expert takes the same share, for every top_k. None means 0 with an expert bias, which replaces the loss,
    and 0.01 otherwise."""
    balance_loads: Annotated[str, one_of(BALANCE_LOADS)] = "batch"
    """Loads by which the balance loss weighs the probabilities of a batch. "batch" uses those of the same batch. This
    is exact, but with microbatches it costs a second forward pass of all but the first, because loads must be known
    before gradients (see ``moejax.train.step``). "previous_step" uses those of the previous optimiser step, and uniform
    loads at the first step. It needs no second pass and does not depend on the number of microbatches, but the gradient
    lags one step behind. The logged balance loss is always that of the batch."""
    sequence_balance: Scale = 0.0
    """Weight of the balance loss of each single sequence (DeepSeek-V3)."""
    router_z: Scale = 0.001
    """Weight of the mean squared logsumexp of the router's logits."""
    expert_bias_rate: Scale = 0.001
    """Step size of the expert bias per optimiser step, for architectures that have one instead of a balance loss."""
    mtp: Scale = 0.3
    """Weight of the multi-token prediction losses: the mean over modules of their cross-entropy and router losses. This
    is lambda of DeepSeek-V3, which trained 10 trillion tokens with 0.3."""
    mtp_later: Scale = 0.1
    """Weight that replaces ``mtp`` after ``mtp_later_tokens`` tokens (DeepSeek-V3: 0.1)."""
    mtp_later_tokens: Tokens = 0
    """Number of tokens after which the weight is ``mtp_later``; 0 keeps it at ``mtp``."""

    def of(self, architecture: Architecture) -> LossWeights:
        """Return these weights with the defaults that depend on the architecture filled in."""
        return replace(self, balance=0.0 if architecture.expert_bias else 0.01) if self.balance is None else self

    def check(self) -> None:
        """Raise ``UserError`` if a weight is outside its range, or ``balance_loads`` is unknown."""
        check_fields(self, "loss")


def token_loss(
    architecture: Architecture,
    params: Params,
    hidden: Float[Array, "batch length dim"],
    targets: Int[Array, "batch length"],
) -> Float[Array, "batch length"]:
    """Return the cross-entropy of each target token, in nats."""
    return cross_entropy.token_loss(hidden, unembedding(architecture, params), targets)


def weighted_losses(
    architecture: Architecture,
    params: Params,
    hidden: tuple[Float[Array, "batch length dim"], ...],
    targets: tuple[Int[Array, "batch length"], ...],
    weights: tuple[Float[Array, "batch length"], ...],
    shares: tuple[Any, ...] = (1.0,),
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ...]]:
    """Return the sum of the losses times their shares, and each loss: the weighted sum of ``token_loss`` of one
    prediction. The gradient of the total is computed in the same pass over the logits."""
    return cross_entropy.weighted_losses(hidden, unembedding(architecture, params), targets, weights, shares)


class Whole(NamedTuple):
    """Values of the whole batch that the losses of a microbatch need."""

    tokens: Int[Array, ""] | Int[Array, " layers"]
    """Number of tokens that experts see; multi-token prediction modules see fewer."""
    sequences: Int[Array, ""] | Int[Array, " layers"]
    """Number of sequences with a token that experts see."""
    loads: Int[Array, "layers experts"] | Float[Array, "layers experts"] | None
    """Loads by which the balance loss weighs: assignments of each expert, or their shares of the total. None: those of
    the microbatch, for a balance loss of weight zero."""


def auxiliary(
    sums: RoutingSums | None,
    weights: LossWeights,
    whole: Whole | None = None,
    *,
    mtp_layers: int = 0,
    mtp_weight: float | Array = 0.0,
) -> tuple[Array, dict[str, Array]]:
    """Return the weighted sum of the auxiliary losses, and each unweighted loss as a mean over layers; empty for a
    dense model.

    If ``whole`` is given, ``sums`` belong to a part of that batch, and the weighted losses of all parts add up to those
    of the whole, in value and gradient. The last ``mtp_layers`` layers belong to multi-token prediction, and their
    means are separate. Each of them has ``mtp_weight`` / ``mtp_layers`` times the weight of a layer of the model, as
    for its cross-entropy. The weights of the model's own layers do not depend on them.
    """
    if sums is None:
        return jnp.zeros((), jnp.float32), {}
    tokens = 1.0 if whole is None else _share(sums.tokens, whole.tokens)
    sequences = 1.0 if whole is None else _share(sums.sequences, whole.sequences)
    of_layers = {
        "balance_loss": tokens * balance_loss(sums, None if whole is None else whole.loads),
        "sequence_balance_loss": sequences * sequence_balance_loss(sums),
        "router_z_loss": tokens * router_z_loss(sums),
    }
    layers = sums.tokens.shape[0] - mtp_layers
    raw = {name: losses[:layers].mean() for name, losses in of_layers.items()}
    if not mtp_layers:
        return _weighted(raw, weights), raw
    further = {name: losses[layers:].mean() for name, losses in of_layers.items()}
    weighted = _weighted(raw, weights) + mtp_weight / layers * _weighted(further, weights)
    return weighted, raw | {f"mtp_{name}": loss for name, loss in further.items()}


def _weighted(raw: dict[str, Array], weights: LossWeights) -> Array:
    assert weights.balance is not None  # Set by LossWeights.of.
    return (
        weights.balance * raw["balance_loss"]
        + weights.sequence_balance * raw["sequence_balance_loss"]
        + weights.router_z * raw["router_z_loss"]
    )


def _share(part: Array, whole: Array) -> Float[Array, "*layers"]:
    return part.astype(jnp.float32) / jnp.maximum(whole, 1).astype(jnp.float32)
