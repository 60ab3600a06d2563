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
"""Choices of the expert loads that weight the probabilities in the balance loss."""


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the auxiliary losses (means over MoE layers), and which loads the balance loss uses."""

    balance: Scale | None = None
    """Weight of the balance loss over the whole batch of a step, independent of microbatches and mesh. For every top_k,
    the loss is 1 if all experts have equal loads. None means 0.01, or 0 with an expert bias, which
    replaces the loss."""
    balance_loads: Annotated[str, one_of(BALANCE_LOADS)] = "batch"
    """Expert loads that weight the probabilities in the balance loss. "batch" uses the loads of the same batch. This is
    exact, but with microbatches all except the first need a second forward pass, because gradients depend on the loads
    (see ``moejax.train.step``). "previous_step" uses the loads of the previous optimizer step, and uniform loads at the
    first step. It needs no second pass and does not depend on the number of microbatches, but the gradient lags one
    step behind. The logged balance loss always uses the loads of the batch."""
    sequence_balance: Scale = 0.0
    """Weight of the balance loss within each sequence (DeepSeek-V3)."""
    router_z: Scale = 0.001
    """Weight of the mean squared logsumexp of the router's logits."""
    expert_bias_rate: Scale = 0.001
    """Step size of the expert bias per optimizer step, for architectures with an expert bias instead of a balance
    loss."""
    mtp: Scale = 0.3
    """Weight of the multi-token prediction losses: the mean over modules of their cross-entropy and router losses. This
    is lambda of DeepSeek-V3, which used 0.3 for the first 10 trillion tokens."""
    mtp_later: Scale = 0.1
    """Weight that replaces ``mtp`` after ``mtp_later_tokens`` tokens (DeepSeek-V3: 0.1)."""
    mtp_later_tokens: Tokens = 0
    """Number of tokens after which the weight is ``mtp_later``; 0 keeps the weight at ``mtp``."""

    def of(self, architecture: Architecture) -> LossWeights:
        """Return these weights with architecture-dependent defaults filled in."""
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
    """Return the sum of the losses times their shares, and each loss. A loss is the weighted sum of ``token_loss`` for
    one element of ``hidden``. The gradient of the total is computed in the same pass over the logits."""
    return cross_entropy.weighted_losses(hidden, unembedding(architecture, params), targets, weights, shares)


class Whole(NamedTuple):
    """Values of the whole batch that a microbatch's losses need."""

    tokens: Int[Array, ""] | Int[Array, " layers"]
    """Number of tokens that are routed to experts; multi-token prediction modules route fewer."""
    sequences: Int[Array, ""] | Int[Array, " layers"]
    """Number of sequences with a routed token."""
    loads: Int[Array, "layers experts"] | Float[Array, "layers experts"] | None
    """Loads for the balance loss: each expert's assignments, or their shares of the total. None uses the microbatch's
    loads, for a balance loss with weight 0."""


def auxiliary(
    sums: RoutingSums | None,
    weights: LossWeights,
    whole: Whole | None = None,
    *,
    mtp_layers: int = 0,
    mtp_weight: float | Array = 0.0,
) -> tuple[Array, dict[str, Array]]:
    """Return the weighted sum of the auxiliary losses, and each unweighted loss as a mean over layers. For a dense
    model, the sum is 0 and there are no losses.

    If ``whole`` is given, ``sums`` belong to a microbatch of that batch. The weighted losses of all microbatches then
    add up to the whole batch's losses, in value and gradient. The last ``mtp_layers`` layers belong to multi-token
    prediction, and their means are separate. Each of these layers has ``mtp_weight`` / ``mtp_layers`` times the weight
    of a model layer, as for the cross-entropy. They do not change the weights of the model's own layers.
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
