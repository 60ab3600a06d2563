"""Softmax routers: the probabilities of a softmax over all experts, or over the chosen ones."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import Float, Key

from moejax.routing.routing import Routing, choose, normalised, pick, token_choice


def softmax_topk(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
    normalise: bool = True,
    gate_scale: float = 1.0,
) -> Routing:
    """Softmax over all experts, then the top k (Mixtral, Qwen3-MoE; OLMoE and Qwen2-MoE with ``normalise=False``).

    With ``normalise`` the gates of a token sum to ``gate_scale``, and the routing is that of ``topk_softmax``.
    """
    probabilities = jax.nn.softmax(logits, axis=1)
    expert = choose(probabilities, top_k, bias)
    gate = pick(probabilities, expert)
    return token_choice(logits, probabilities, expert, gate_scale * (normalised(gate) if normalise else gate))


def topk_softmax(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
    gate_scale: float = 1.0,
) -> Routing:
    """The top k logits, then a softmax over those alone (Shazeer et al. 2017 without noise; gpt-oss)."""
    expert = choose(logits, top_k, bias)
    gate = jax.nn.softmax(pick(logits, expert), axis=1)
    return token_choice(logits, jax.nn.softmax(logits, axis=1), expert, gate_scale * gate)
