"""Expert choice: experts pick tokens, so that loads are equal by construction."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from moejax.routing.routing import Routing


def expert_choice(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
) -> Routing:
    """Every expert takes the tokens it suits best, ``top_k`` experts a token on average (Zhou et al. 2022, Eq. 1–2).

    Not causal: whether a token is taken depends on later tokens and on other sequences, so a language model trained
    so sees a little of its future and cannot be sampled from token by token. A ``bias`` changes nothing.
    """
    tokens, experts = logits.shape
    capacity = min(math.ceil(tokens * top_k / experts), tokens)
    probabilities = jax.nn.softmax(logits, axis=1)
    gate, token = jax.lax.top_k(probabilities.T, capacity)
    return Routing(
        token=token.reshape(-1),
        expert=jnp.repeat(jnp.arange(experts, dtype=jnp.int32), capacity),
        gate=gate.reshape(-1),
        probabilities=probabilities,
        logits=logits,
        num_tokens=tokens,
        num_experts=experts,
        balanced_load=capacity,
        capacity=capacity,
    )
