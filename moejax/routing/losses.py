"""Compute the auxiliary losses of a router from sums over tokens.

Sums add up over microbatches and over the mesh, so the reported value does not depend on how a batch is split.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from moejax.routing.sums import RoutingSums, balance


def balance_loss(sums: RoutingSums, loads: Array | None = None) -> Float[Array, "*layers"]:
    """Return E · sum over experts of (share of assignments) · (mean probability); 1 in perfect balance, for every k.

    Fedus et al. 2022 (Switch), Eq. 4–6. Over one batch it requires each batch to be balanced. ``loads``, a number per
    layer and expert, replaces the counts of these sums as weights of the probabilities; only their shares matter. With
    the loads of all microbatches of a step, only the whole needs to be balanced (the global-batch balance of Qiu et al.
    2025), and the gradients add up over microbatches to that of the undivided batch.
    """
    return balance(sums.counts if loads is None else loads, sums.probability)


def sequence_balance_loss(sums: RoutingSums) -> Float[Array, "*layers"]:
    """Return the mean over non-empty sequences of the balance loss of each (DeepSeek-V3 2024, Eq. 17–20); 1 in perfect
    balance."""
    return sums.sequence_balance / jnp.maximum(sums.sequences, 1).astype(jnp.float32)


def router_z_loss(sums: RoutingSums) -> Float[Array, "*layers"]:
    """Return the mean over tokens of logsumexp(logits)², which keeps logits small (ST-MoE, Zoph et al. 2022, Eq. 5)."""
    return sums.squared_logsumexp / jnp.maximum(sums.tokens, 1).astype(jnp.float32)
