"""What training minimises: cross-entropy, and the routers' auxiliary losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from moejax.architecture import Architecture
from moejax.model.transformer import unembed
from moejax.routing.losses import balance_loss, router_z_loss
from moejax.routing.sums import RoutingSums


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the auxiliary losses, each a mean over mixture layers."""

    balance: float = 0.01
    """Of the balance loss, which is 1 when every expert takes the same share, whatever top_k."""
    router_z: float = 0.001
    """Of the mean squared logsumexp of the router's logits."""
    balance_bias_rate: float = 0.001
    """How far one optimiser step moves the balance bias of an architecture that has one: no loss, but in its place."""

    def check(self) -> None:
        """Raise ``ValueError`` if a weight is negative."""
        for name in ("balance", "router_z", "balance_bias_rate"):
            if getattr(self, name) < 0:
                raise ValueError(f"loss.{name} is {getattr(self, name)}; it cannot be negative.")


def token_costs(
    architecture: Architecture,
    params: Any,
    hidden: Float[Array, "batch length dim"],
    targets: Int[Array, "batch length"],
) -> Float[Array, "batch length"]:
    """Nats each target token costs."""
    logits = unembed(architecture, params, hidden)
    chosen = jnp.take_along_axis(logits, targets[:, :, None], axis=2)[:, :, 0]
    return jax.nn.logsumexp(logits, axis=2) - chosen


def auxiliary(sums: RoutingSums | None, weights: LossWeights) -> tuple[Array, dict[str, Array]]:
    """Weighted sum of the auxiliary losses, and each one raw; nothing for a dense model."""
    if sums is None:
        return jnp.zeros((), jnp.float32), {}
    raw = {"balance_loss": balance_loss(sums).mean(), "router_z_loss": router_z_loss(sums).mean()}
    return weights.balance * raw["balance_loss"] + weights.router_z * raw["router_z_loss"], raw
