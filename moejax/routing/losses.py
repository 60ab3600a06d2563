"""Auxiliary losses of a router, from sums over tokens.

A sum adds over microbatches and over the mesh, so the value reported never depends on how a batch was cut.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from moejax.routing.sums import RoutingSums, balance


def balance_loss(sums: RoutingSums, loads: Array | None = None) -> Float[Array, "*layers"]:
    """E · sum over experts of (share of assignments) · (mean probability); 1 in perfect balance, for every k.

    Fedus et al. 2022 (Switch), Eq. 4–6. Over one batch it asks each batch for balance. With ``loads``, a
    number per layer and expert, other ones than the counts of these sums weigh the probabilities, and only their shares
    matter. With those of all microbatches of a step it asks only the whole for balance (the global-batch balance of Qiu
    et al. 2025), and then its gradients add over microbatches to that of the uncut batch.
    """
    return balance(sums.counts if loads is None else loads, sums.probability)


def sequence_balance_loss(sums: RoutingSums) -> Float[Array, "*layers"]:
    """Mean over sequences with tokens of each one's balance loss (DeepSeek-V3 2024, Eq. 17–20); 1 if all are in
    balance."""
    return sums.sequence_balance / jnp.maximum(sums.sequences, 1).astype(jnp.float32)


def router_z_loss(sums: RoutingSums) -> Float[Array, "*layers"]:
    """Mean over tokens of logsumexp(logits)², which keeps logits small (ST-MoE, Zoph et al. 2022, Eq. 5)."""
    return sums.squared_logsumexp / jnp.maximum(sums.tokens, 1).astype(jnp.float32)
