"""Routers that explore by noise while they learn, and not at all without a key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Key

from moejax.errors import UserError
from moejax.routing.routing import Routing, choose, pick, token_choice
from moejax.routing.softmax import softmax_topk


def jitter(x: Float[Array, "tokens model"], key: Key[Array, ""], epsilon: float = 1e-2) -> Float[Array, "tokens model"]:
    """The router's input times uniform noise in [1 - epsilon, 1 + epsilon] (Fedus et al. 2022, Switch)."""
    return x * jax.random.uniform(key, x.shape, x.dtype, 1.0 - epsilon, 1.0 + epsilon)


def switch(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int = 1,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
) -> Routing:
    """One expert a token, its gate the softmax probability (Fedus et al. 2022, Eq. 1–2).

    Its noise, ``jitter``, belongs on the input of the router's linear map.
    """
    if top_k != 1:
        raise UserError(f"top_k is {top_k}, but the switch router sends a token to one expert; set top_k to 1.")
    return softmax_topk(logits, top_k=1, bias=bias, normalise=False)


def noisy_topk(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
    noise_logits: Float[Array, "tokens experts"] | None = None,
) -> Routing:
    """Normal noise on the logits, the top k, and a softmax over those (Shazeer et al. 2017, Eq. 3–5).

    The noise's standard deviation is softplus(``noise_logits``), of a second linear map, as there; without one it is
    1/experts (Riquelme et al. 2021, V-MoE).
    """
    if key is not None:
        scale = 1.0 / logits.shape[1] if noise_logits is None else jax.nn.softplus(noise_logits)
        logits = logits + scale * jax.random.normal(key, logits.shape, logits.dtype)
    expert = choose(logits, top_k, bias)
    return token_choice(logits, jax.nn.softmax(logits, axis=1), expert, jax.nn.softmax(pick(logits, expert), axis=1))


def random(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
) -> Routing:
    """For debugging: k different experts drawn uniformly, whatever the logits; without a key, always the same."""
    expert = choose(jax.random.uniform(jax.random.key(0) if key is None else key, logits.shape), top_k)
    return _equal_gates(logits, expert)


def balanced(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
) -> Routing:
    """For debugging: experts take turns, whatever the logits, so that all have as much to do."""
    tokens, experts = logits.shape
    return _equal_gates(logits, (jnp.arange(tokens * top_k, dtype=jnp.int32) % experts).reshape(tokens, top_k))


def _equal_gates(logits, expert) -> Routing:
    gate = jnp.full(expert.shape, 1.0 / expert.shape[1], logits.dtype)
    return token_choice(logits, jax.nn.softmax(logits, axis=1), expert, gate)
