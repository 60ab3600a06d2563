"""Sigmoid routers: scores of experts that do not compete, balanced by a bias instead of a loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from moejax.errors import UserError
from moejax.routing.routing import Routing, best, choose, normalised, pick, token_choice


def sigmoid_topk(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
    normalise: bool = True,
    gate_scale: float = 1.0,
) -> Routing:
    """Sigmoid scores; the top k of score + bias; gates are the chosen scores, normalised (DeepSeek-V3, Eq. 12–16)."""
    scores = jax.nn.sigmoid(logits)
    expert = choose(scores, top_k, bias)
    return _gated(logits, scores, expert, normalise, gate_scale)


def group_limited(
    logits: Float[Array, "tokens experts"],
    *,
    top_k: int,
    bias: Float[Array, " experts"] | None = None,
    key: Key[Array, ""] | None = None,
    num_groups: int = 1,
    top_k_groups: int = 1,
    normalise: bool = True,
    gate_scale: float = 1.0,
) -> Routing:
    """``sigmoid_topk`` within each token's ``top_k_groups`` best groups of neighbouring experts (DeepSeek-V3, 2.1.2).

    A group is as good as the sum of its two best biased scores. One group is ``sigmoid_topk``.
    """
    tokens, experts = logits.shape
    _check_groups(experts, top_k, num_groups, top_k_groups)
    scores = jax.nn.sigmoid(logits)
    biased = scores if bias is None else scores + bias
    grouped = biased.reshape(tokens, num_groups, -1)
    groups = choose(best(grouped, min(2, grouped.shape[2]))[0].sum(2), top_k_groups)
    allowed = (groups[:, :, None] == jnp.arange(num_groups)).any(1)
    expert = choose(jnp.where(allowed[:, :, None], grouped, -jnp.inf).reshape(tokens, experts), top_k)
    return _gated(logits, scores, expert, normalise, gate_scale)


def update_bias(
    bias: Float[Array, "*layers experts"], counts: Int[Array, "*layers experts"], rate: float | Array
) -> Float[Array, "*layers experts"]:
    """The bias after one optimiser step: ``rate`` up for experts below the mean load, down for those above.

    Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing", Algorithm 1, with the step's mean over experts subtracted,
    so that the bias does not drift as a whole. ``counts`` are those of every microbatch of the step and of the whole
    mesh: the sign of a sum is not the sum of signs.
    """
    load = counts.astype(bias.dtype)
    step = jnp.sign(load.mean(-1, keepdims=True) - load)
    return bias + rate * (step - step.mean(-1, keepdims=True))


def _gated(logits, scores, expert, normalise: bool, gate_scale: float) -> Routing:
    gate = pick(scores, expert)
    gate = gate_scale * (normalised(gate) if normalise else gate)
    return token_choice(logits, normalised(scores), expert, gate)


def _check_groups(experts: int, top_k: int, num_groups: int, top_k_groups: int) -> None:
    if experts % num_groups:
        raise UserError(f"{experts} experts do not form {num_groups} groups of one size; num_groups must divide them.")
    if not 1 <= top_k_groups <= num_groups:
        raise UserError(f"top_k_groups is {top_k_groups}; a token may use from 1 to num_groups = {num_groups} groups.")
    if top_k > experts // num_groups * top_k_groups:
        raise UserError(
            f"top_k is {top_k}, but {top_k_groups} groups of {experts // num_groups} experts hold fewer; raise "
            f"top_k_groups or lower top_k."
        )
