"""Turn router logits into a ``Routing``.

A router is a function of float32 logits: ``router(logits, *, top_k, bias=None, key=None, **options) -> Routing``.
``bias`` shifts the choice of experts but never their weights. ``key`` seeds the noise of noisy routers; None disables
noise. Each further option is set by the Architecture field of the same name, which must exist. A router whose decision
for a token depends on later tokens also has an argument ``padding_mask``: Bool[tokens], False for padding, or None
without padding.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from moejax.errors import UserError
from moejax.kernels.saved_names import choice
from moejax.plugins import LazyDict, with_plugins
from moejax.routing.layout import expert_capacity
from moejax.routing.routing import Routing, gather_scores, token_choice, top_k_indices, top_k_scores

Logits = Float[Array, "tokens experts"]
Bias = Float[Array, " experts"] | None
NoiseKey = Key[Array, ""] | None


def softmax_topk(
    logits: Logits,
    *,
    top_k: int,
    bias: Bias = None,
    key: NoiseKey = None,
    norm_topk_prob: bool = True,
    routed_scaling_factor: float = 1.0,
) -> Routing:
    """Apply softmax over all experts, then top k (Mixtral, Qwen3-MoE; OLMoE and Qwen2-MoE without ``norm_topk_prob``).

    With ``norm_topk_prob`` a token's weights sum to ``routed_scaling_factor``, and the routing equals ``topk_softmax``.
    """
    probabilities = jax.nn.softmax(logits, axis=1)
    expert = top_k_indices(probabilities, top_k, bias)
    weight = _scaled(gather_scores(probabilities, expert), norm_topk_prob, routed_scaling_factor)
    return token_choice(logits, probabilities, expert, weight)


def topk_softmax(
    logits: Logits, *, top_k: int, bias: Bias = None, key: NoiseKey = None, routed_scaling_factor: float = 1.0
) -> Routing:
    """Select the top k logits, then apply softmax only to these (Shazeer et al. 2017 without noise; gpt-oss)."""
    expert = top_k_indices(logits, top_k, bias)
    weight = jax.nn.softmax(gather_scores(logits, expert), axis=1)
    return token_choice(logits, jax.nn.softmax(logits, axis=1), expert, routed_scaling_factor * weight)


def sigmoid_topk(
    logits: Logits,
    *,
    top_k: int,
    bias: Bias = None,
    key: NoiseKey = None,
    norm_topk_prob: bool = True,
    routed_scaling_factor: float = 1.0,
) -> Routing:
    """Select the top k by sigmoid score + bias; weights are the normalized scores of the selection (DeepSeek-V3, Eq.
    12–16)."""
    expert = top_k_indices(jax.nn.sigmoid(logits), top_k, bias)
    return _sigmoid_routing(logits, expert, norm_topk_prob, routed_scaling_factor)


def group_limited(
    logits: Logits,
    *,
    top_k: int,
    bias: Bias = None,
    key: NoiseKey = None,
    num_groups: int = 1,
    top_k_groups: int = 1,
    norm_topk_prob: bool = True,
    routed_scaling_factor: float = 1.0,
) -> Routing:
    """Apply ``sigmoid_topk`` within each token's ``top_k_groups`` best groups of adjacent experts (DeepSeek-V3, 2.1.2).

    The score of a group is the sum of its two highest biased scores. With one group this is ``sigmoid_topk``.

    Raises:
      UserError: the groups do not divide the experts, or a token's groups have fewer than ``top_k`` experts.
    """
    tokens, experts = logits.shape
    _check_groups(experts, top_k, num_groups, top_k_groups)
    scores = jax.nn.sigmoid(logits)
    biased = scores if bias is None else scores + bias
    grouped = biased.reshape(tokens, num_groups, -1)
    groups = top_k_indices(top_k_scores(grouped, min(2, grouped.shape[2]))[0].sum(2), top_k_groups)
    allowed = (groups[:, :, None] == jnp.arange(num_groups)).any(1)
    expert = top_k_indices(jnp.where(allowed[:, :, None], grouped, -jnp.inf).reshape(tokens, experts), top_k)
    return _sigmoid_routing(logits, expert, norm_topk_prob, routed_scaling_factor)


def switch(logits: Logits, *, top_k: int = 1, bias: Bias = None, key: NoiseKey = None) -> Routing:
    """Select one expert per token, weighted by its softmax probability (Fedus et al. 2022, Eq. 1–2).

    The router's noise, ``jitter``, is applied to the input of its linear map.

    Raises:
      UserError: ``top_k`` is not 1.
    """
    if top_k != 1:
        raise UserError(f"top_k is {top_k}, but the switch router sends each token to one expert; set top_k to 1.")
    return softmax_topk(logits, top_k=1, bias=bias, norm_topk_prob=False)


def jitter(x: Float[Array, "tokens model"], key: Key[Array, ""], epsilon: float = 1e-2) -> Float[Array, "tokens model"]:
    """Multiply the router's input by uniform noise in [1 - epsilon, 1 + epsilon] (Fedus et al. 2022, Switch)."""
    return x * jax.random.uniform(key, x.shape, x.dtype, 1.0 - epsilon, 1.0 + epsilon)


def noisy_topk(
    logits: Logits,
    *,
    top_k: int,
    bias: Bias = None,
    key: NoiseKey = None,
    noise_logits: Logits | None = None,
) -> Routing:
    """Add normal noise to the logits, select the top k, and apply softmax to these (Shazeer et al. 2017, Eq. 3–5).

    The noise has the standard deviation softplus(``noise_logits``), where ``noise_logits`` come from a second linear
    map as in that paper. Without ``noise_logits``, it is 1/experts (Riquelme et al. 2021, V-MoE).
    """
    if key is not None:
        scale = 1.0 / logits.shape[1] if noise_logits is None else jax.nn.softplus(noise_logits)
        logits = logits + scale * jax.random.normal(key, logits.shape, logits.dtype)
    expert = top_k_indices(logits, top_k, bias)
    weight = jax.nn.softmax(gather_scores(logits, expert), axis=1)
    return token_choice(logits, jax.nn.softmax(logits, axis=1), expert, weight)


def top_p(logits: Logits, *, top_k: int, bias: Bias = None, key: NoiseKey = None, threshold: float = 0.4) -> Routing:
    """Select the most likely experts until their probabilities sum to ``threshold``: at least one and at most
    ``top_k``.

    See Huang et al. 2024, "Harder Tasks Need More Experts". Weights are the probabilities, not normalized. The bound
    ``top_k``, which fixes the shapes, is not in the paper; set it to the number of experts to disable it.
    """
    probabilities = jax.nn.softmax(logits, axis=1)
    expert = top_k_indices(probabilities, top_k, bias)
    weight = gather_scores(probabilities, expert)
    before = jnp.cumsum(weight, axis=1) - weight
    return token_choice(logits, probabilities, expert, weight).masked(choice(before < threshold).reshape(-1))


def expert_choice(
    logits: Logits,
    *,
    top_k: int,
    bias: Bias = None,
    key: NoiseKey = None,
    padding_mask: Bool[Array, " tokens"] | None = None,
) -> Routing:
    """Let every expert select its best tokens, with ``top_k`` experts per token on average (Zhou et al. 2022, Eq. 1–2).

    Loads are equal by construction, and ``bias`` has no effect. This router is not causal: whether a token is selected
    depends on later tokens and on other sequences. A language model trained with it sees some information about future
    tokens and cannot be sampled token by token. Experts never select padding. The number of slots counts padding, but
    each expert selects only its capacity for the other tokens; the remaining slots are invalid.
    """
    tokens, experts = logits.shape
    capacity = min(expert_capacity(tokens * top_k, experts, 1.0), tokens)
    probabilities = jax.nn.softmax(logits, axis=1)
    scores = probabilities if padding_mask is None else jnp.where(padding_mask[:, None], probabilities, -jnp.inf)
    token = choice(jax.lax.top_k(jax.lax.stop_gradient(scores).T, capacity)[1])
    routing = Routing(
        token=token.reshape(-1),
        expert=jnp.repeat(jnp.arange(experts, dtype=jnp.int32), capacity),
        combine_weight=gather_scores(probabilities.T, token).reshape(-1),
        probabilities=probabilities,
        logits=logits,
        num_tokens=tokens,
        num_experts=experts,
        tokens_per_expert=capacity,
        capacity=capacity,
    )
    if padding_mask is None:
        return routing
    real = padding_mask.sum()
    taken = jnp.minimum(expert_capacity(real * top_k, experts, 1.0), real)
    return routing.masked(jnp.tile(jnp.arange(capacity) < taken, experts))


def balanced(logits: Logits, *, top_k: int, bias: Bias = None, key: NoiseKey = None) -> Routing:
    """Assign experts round-robin, independently of the logits, so that loads are equal (debugging)."""
    tokens, experts = logits.shape
    return _equal_weights(logits, (jnp.arange(tokens * top_k, dtype=jnp.int32) % experts).reshape(tokens, top_k))


def random(logits: Logits, *, top_k: int, bias: Bias = None, key: NoiseKey = None) -> Routing:
    """Assign k different experts uniformly at random, independently of the logits (debugging). Without a key, every
    call makes the same choice."""
    expert = top_k_indices(jax.random.uniform(jax.random.key(0) if key is None else key, logits.shape), top_k)
    return _equal_weights(logits, expert)


_OWN: dict[str, Callable[..., Routing]] = {
    router.__name__: router
    for router in (
        softmax_topk,
        topk_softmax,
        sigmoid_topk,
        group_limited,
        switch,
        noisy_topk,
        expert_choice,
        top_p,
        balanced,
        random,
    )
}
ROUTERS: LazyDict[str, Callable[..., Routing]] = LazyDict(
    lambda: with_plugins(_OWN, "moejax.routers"), "moejax.routers"
)
"""Routers, keyed by ``Architecture.router``; other packages add routers through entry points."""

INPUT_NOISE = {"switch": jitter}
"""``noise(x, key) -> x`` for routers that apply noise to the input of their linear map during training."""

_NO_OPTIONS = frozenset({"logits", "top_k", "bias", "key", "noise_logits", "padding_mask"})


def is_causal(router: str) -> bool:
    """Return whether a router's decision for a token is independent of later tokens of the batch."""
    return "padding_mask" not in inspect.signature(ROUTERS[router]).parameters


def router_options(router: str) -> tuple[str, ...]:
    """Return the options of a router, which are fields of Architecture."""
    return tuple(name for name in inspect.signature(ROUTERS[router]).parameters if name not in _NO_OPTIONS)


def unknown_options(router: str, given: dict[str, object]) -> list[str]:
    """Return the names in ``given`` that are options of other routers but not of this router."""
    of_any = {option for name in ROUTERS for option in router_options(name)}
    return [name for name in given if name in of_any and name not in router_options(router)]


def update_bias(
    bias: Float[Array, "*layers experts"], counts: Int[Array, "*layers experts"], rate: float | Array
) -> Float[Array, "*layers experts"]:
    """Update the expert bias after an optimizer step: add ``rate`` for experts below the mean load, subtract it above.

    This is Algorithm 1 of Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing", but the update's mean over experts is
    subtracted, so that the mean bias does not drift. ``counts`` must be summed over all microbatches of the step and
    the whole mesh, because the sign of a sum is not the sum of signs.
    """
    # Compare loads with the mean as integers; a rounded mean would give an expert at the mean a sign. The sum of the
    # loads may exceed 32 bits; sums of their quotients and remainders by the number of experts do not.
    quotients, rests = jnp.divmod(counts, counts.shape[-1])
    more, rest = jnp.divmod(rests.sum(-1, keepdims=True, dtype=counts.dtype), counts.shape[-1])
    mean = quotients.sum(-1, keepdims=True, dtype=counts.dtype) + more
    step = jnp.where(counts == mean, jnp.sign(rest), jnp.sign(mean - counts)).astype(bias.dtype)
    return bias + rate * (step - step.mean(-1, keepdims=True))


def _scaled(scores: Float[Array, "tokens top_k"], normalize: bool, factor: float) -> Float[Array, "tokens top_k"]:
    return factor * (scores / scores.sum(axis=1, keepdims=True) if normalize else scores)


def _sigmoid_routing(logits: Logits, expert: Int[Array, "tokens top_k"], normalize: bool, factor: float) -> Routing:
    """Return the routing with sigmoid scores as weights.

    Scores are normalized on a log scale: if all logits are very negative, sums of scores and gradients of quotients
    underflow. Weights keep the epsilon of the DeepSeek-V3 and transformers code; probabilities sum to 1.
    """
    log_scores = jax.nn.log_sigmoid(logits)
    if normalize:
        chosen = gather_scores(log_scores, expert)
        total = jax.nn.logsumexp(chosen, axis=1, keepdims=True)
        weight = jnp.exp(chosen - jnp.logaddexp(total, math.log(1e-20)))
    else:
        weight = jax.nn.sigmoid(gather_scores(logits, expert))
    return token_choice(logits, jax.nn.softmax(log_scores, axis=1), expert, factor * weight)


def _equal_weights(logits: Logits, expert: Int[Array, "tokens top_k"]) -> Routing:
    weight = jnp.full(expert.shape, 1.0 / expert.shape[1], logits.dtype)
    return token_choice(logits, jax.nn.softmax(logits, axis=1), expert, weight)


def _check_groups(experts: int, top_k: int, num_groups: int, top_k_groups: int) -> None:
    if experts % num_groups:
        raise UserError(f"num_groups is {num_groups}; it must divide the number of experts, {experts}.")
    if not 1 <= top_k_groups <= num_groups:
        raise UserError(f"top_k_groups is {top_k_groups}; it must be between 1 and num_groups, {num_groups}.")
    if top_k > experts // num_groups * top_k_groups:
        raise UserError(
            f"top_k is {top_k}, but {top_k_groups} groups of {experts // num_groups} experts have fewer experts; raise "
            f"top_k_groups or lower top_k."
        )
