"""Top-p: as many experts as a token's probabilities need to reach a sum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from moejax.routing.routing import Routing, choose, pick, token_choice


def top_p(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
    threshold: float = 0.4,
) -> Routing:
    """The likeliest experts until their probabilities sum to ``threshold``, at least one and at most ``top_k``.

    Huang et al. 2024, "Harder Tasks Need More Experts"; gates are the probabilities, not normalised. The bound
    ``top_k``, which fixes the shapes, is ours: give it the number of experts for none.
    """
    probabilities = jax.nn.softmax(logits, axis=1)
    expert = choose(probabilities, top_k, bias)
    gate = pick(probabilities, expert)
    before = jnp.cumsum(gate, axis=1) - gate
    return token_choice(logits, probabilities, expert, gate).keep((before < threshold).reshape(-1))
