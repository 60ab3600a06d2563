"""What training minimises: cross-entropy, and the routers' auxiliary losses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from moejax.architecture import Architecture
from moejax.config import check_fields
from moejax.errors import UserError
from moejax.kernels import cross_entropy
from moejax.model.transformer import unembedding
from moejax.ranges import Scale, Tokens
from moejax.routing.losses import balance_loss, router_z_loss, sequence_balance_loss
from moejax.routing.sums import RoutingSums

BALANCE_LOADS = ("batch", "previous_step")
"""Whose loads the balance loss may weigh probabilities by."""


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the auxiliary losses, each a mean over mixture layers, and what the balance loss takes for loads."""

    balance: Scale | None = None
    """Of the balance loss over the whole batch of a step, however it is cut into microbatches and over the mesh. It is
    1 when every expert takes the same share, whatever top_k. None stands for 0 with an expert bias, which takes the
    place of the loss, and for 0.01 otherwise."""
    balance_loads: str = "batch"
    """Loads by which the balance loss weighs the probabilities of a batch. "batch" takes those of the same batch, which
    is exact, and with microbatches costs a second forward pass of all but the first, as loads must be known before
    gradients (``moejax.train.step`` says why).
    "previous_step" takes those of the last step that was taken, uniform ones at the first step: no second pass, and no
    dependence on the number of microbatches, but the gradient lags one step behind. The balance loss that is logged is
    that of the batch either way."""
    sequence_balance: Scale = 0.0
    """Of the balance loss of each sequence by itself (DeepSeek-V3)."""
    router_z: Scale = 0.001
    """Of the mean squared logsumexp of the router's logits."""
    expert_bias_rate: Scale = 0.001
    """How far one optimiser step moves the expert bias of an architecture that has one: no loss, but in its place."""
    mtp: Scale = 0.3
    """Of the mean over an architecture's modules of multi-token prediction of each one's cross-entropy, and of the
    losses of its router: lambda of DeepSeek-V3, which trained 10 trillion tokens with .3."""
    mtp_later: Scale = 0.1
    """The weight in the place of ``mtp`` from ``mtp_later_tokens`` on (DeepSeek-V3: .1)."""
    mtp_later_tokens: Tokens = 0
    """Tokens after which the weight is ``mtp_later``; 0 leaves it at ``mtp``."""

    def of(self, architecture: Architecture) -> LossWeights:
        """Return these weights with those that an architecture decides."""
        return replace(self, balance=0.0 if architecture.expert_bias else 0.01) if self.balance is None else self

    def check(self) -> None:
        """Raise ``UserError`` if a weight is outside its range, or ``balance_loads`` unknown."""
        check_fields(self, "loss")
        if self.balance_loads not in BALANCE_LOADS:
            raise UserError(
                f"loss.balance_loads is {self.balance_loads!r}; choose {' or '.join(map(repr, BALANCE_LOADS))}."
            )


def token_loss(
    architecture: Architecture,
    params: Any,
    hidden: Float[Array, "batch length dim"],
    targets: Int[Array, "batch length"],
) -> Float[Array, "batch length"]:
    """Cross-entropy of each target token, in nats."""
    return cross_entropy.token_loss(hidden, unembedding(architecture, params), targets)


def weighted_losses(
    architecture: Architecture,
    params: Any,
    hidden: tuple[Float[Array, "batch length dim"], ...],
    targets: tuple[Int[Array, "batch length"], ...],
    weights: tuple[Float[Array, "batch length"], ...],
    shares: tuple[Any, ...] = (1.0,),
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], ...]]:
    """Of each prediction the sum of ``token_loss``, each times its weight; before them the sum of these, each times its
    share, whose gradient is made in the same pass over the logits."""
    return cross_entropy.weighted_losses(hidden, unembedding(architecture, params), targets, weights, shares)


class Whole(NamedTuple):
    """What the losses of a microbatch must know of the whole batch."""

    tokens: Int[Array, ""] | Int[Array, " layers"]
    """That experts see; those of multi-token prediction see fewer."""
    sequences: Int[Array, ""] | Int[Array, " layers"]
    """Of which experts see a token."""
    loads: Int[Array, "layers experts"] | Float[Array, "layers experts"] | None
    """By which the balance loss weighs: assignments of each expert, or their shares of all. None: those of the
    microbatch, for a balance loss without weight."""


def auxiliary(
    sums: RoutingSums | None,
    weights: LossWeights,
    whole: Whole | None = None,
    *,
    mtp_layers: int = 0,
    mtp_weight: float | Array = 0.0,
) -> tuple[Array, dict[str, Array]]:
    """Weighted sum of the auxiliary losses, and each one raw, a mean over layers; nothing for a dense model.

    With the ``whole`` batch, the sums given are of a part of it, and the weighted losses of all parts add to the
    whole's, in value and gradient. The last ``mtp_layers`` are those of multi-token prediction, whose means are apart.
    One of them weighs ``mtp_weight`` / ``mtp_layers`` of what a layer of the model does, as its cross-entropy weighs so
    much of the model's; what the model's own layers weigh does not depend on them.
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
    assert weights.balance is not None  # LossWeights.of
    return (
        weights.balance * raw["balance_loss"]
        + weights.sequence_balance * raw["sequence_balance_loss"]
        + weights.router_z * raw["router_z_loss"]
    )


def _share(part: Array, whole: Array) -> Float[Array, "*layers"]:
    return part.astype(jnp.float32) / jnp.maximum(whole, 1).astype(jnp.float32)
