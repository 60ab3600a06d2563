"""Count parameters and FLOPs by each paper's convention, as sums over the same parts.

Papers leave out parts (norms, router, embeddings, logits): the convention sums the other parts. Papers also simplify
attention (as many key-value heads as heads, or heads that together are as wide as the model): the convention counts a
simplified architecture exactly. So no convention repeats a formula of ``accounting.py``. Parts that a paper does not
mention (dense layers among MoE layers, latent attention, gates) are counted exactly. Multi-token prediction modules are
an exception: no paper covers them, and only the exact FLOPs include them.

Formulas use the letters of the paper. FLOPs are for training, forward and backward, per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from moejax.architecture import Architecture
from moejax.laws.accounting import Flops, Matrices, flops_per_token, matrices, params
from moejax.ranges import Number


@dataclass(frozen=True)
class ParamsConvention:
    """A paper's N and N_a of an architecture."""

    source: str
    total: Callable[[Architecture], Number]
    active: Callable[[Architecture], Number]


@dataclass(frozen=True)
class FlopsConvention:
    """A paper's training FLOPs per token, for an architecture and a sequence length."""

    source: str
    per_token: Callable[[Architecture, Number], Number]


def multi_head(architecture: Architecture) -> Architecture:
    """Return the architecture with as many key-value heads as heads, so that attention has 4·d_head·n_h·d parameters
    per layer."""
    return architecture.replace(num_kv_heads=architecture.num_heads, value_head_dim=0, num_mtp_layers=0)


def square(architecture: Architecture) -> Architecture:
    """Return the architecture with one head as wide as the model, so that attention has 4·d² parameters and its scores
    take 4·d·S forward FLOPs."""
    one_head = {"num_heads": 1, "num_kv_heads": 1, "head_dim": architecture.model_dim, "value_head_dim": 0}
    return architecture.replace(**one_head, kv_latent_dim=0, num_mtp_layers=0)


def grouped_square(architecture: Architecture) -> Architecture:
    """Return the architecture with heads of width d/n_h, so that attention has d²·(2 + 2·n_kv/n_h) parameters per
    layer."""
    head_dim = architecture.model_dim / architecture.num_heads
    return architecture.replace(head_dim=head_dim, value_head_dim=0, kv_latent_dim=0, num_mtp_layers=0)


def blocks(m: Matrices) -> Number:
    """Return the attention and feed-forward matrices that serve a token, without router, norms, biases and
    embeddings."""
    return m.attention + m.routed_experts_active + m.shared_experts + m.dense_feed_forward


def _blocks_total(m: Matrices) -> Number:
    return blocks(m) + m.routed_experts_idle


def _block_flops(f: Flops) -> Number:
    return f.forward - f.router - f.unembedding


def _abnar(architecture: Architecture, sequence_length: Number, router_flops_per_param: int) -> Number:
    f = flops_per_token(square(architecture), sequence_length)
    return 3 * (f.forward - f.router) + router_flops_per_param * matrices(architecture).router


def _tian_printed(architecture: Architecture, sequence_length: Number) -> Number:
    f = flops_per_token(grouped_square(architecture), sequence_length)
    missing = 2 * architecture.model_dim**2 * architecture.num_layers + f.shared_experts / 3
    return 3 * (f.forward - f.router - missing)


PARAMS: dict[str, ParamsConvention] = {
    "exact": ParamsConvention(
        "all parameters except those of multi-token prediction; idle routed experts are not active",
        lambda a: params(a).total,
        lambda a: params(a).active,
    ),
    "abnar": ParamsConvention(
        "Abnar et al. 2025, Sec. 2: all parameters, and those that serve a token",
        lambda a: params(a).total,
        lambda a: params(a).active,
    ),
    "tian": ParamsConvention(
        "Tian et al. 2025, Tables 1 and 3: all parameters except those of the vocabulary",
        lambda a: params(a).total - params(a).vocabulary,
        lambda a: params(a).active - params(a).vocabulary,
    ),
    "zhao": ParamsConvention(
        "Zhao et al. 2025, Eq. 2-3: (4·d_head·n_h + 3·d_expert·(SG + n_e))·d·l; N_a has G instead of SG + n_e",
        lambda a: _blocks_total(matrices(multi_head(a))),
        lambda a: blocks(matrices(multi_head(a))),
    ),
    "resources": ParamsConvention(
        "ICLR 2026 resource equation, Eq. 14-15: (4 + 3μ)·D_m²·L_e + (4 + 3α)·D_m²·L_d; N_a has β instead of μ",
        lambda a: _blocks_total(matrices(square(a))),
        lambda a: blocks(matrices(square(a))),
    ),
}
"""Conventions for parameters, by the paper's name (as in ``moejax laws``)."""

FLOPS: dict[str, FlopsConvention] = {
    "exact": FlopsConvention(
        "three forward passes, scores against the whole sequence",
        lambda a, s: flops_per_token(a, s).training,
    ),
    "exact-causal": FlopsConvention(
        "three forward passes, without the masked half of the scores",
        lambda a, s: flops_per_token(a, s).training_causal,
    ),
    "abnar": FlopsConvention(
        "Abnar et al. 2025, App. C: l·(4C·d² + 2C·d·n_ctx + 12C/G·E_active·d² + R·d·E_total) + C·n_vocab·d, C=6, R=14",
        lambda a, s: _abnar(a, s, router_flops_per_param=14),
    ),
    "abnar-eq9": FlopsConvention(
        "Abnar et al. 2025, Eq. 9: as in App. C, but without the router",
        lambda a, s: _abnar(a, s, router_flops_per_param=0),
    ),
    "6-params-active": FlopsConvention(
        "6·N_a with all active parameters, the comparison in Abnar et al. 2025, App. C",
        lambda a, s: 6 * params(a).active,
    ),
    "tian": FlopsConvention(
        "Tian et al. 2025, App. I as used in Table 12: 3·(2d²·(2 + 2·n_kv/n_h) + 4·s·d + 6·d·d_ffn), no logits",
        lambda a, s: 3 * _block_flops(flops_per_token(grouped_square(a), s)),
    ),
    "tian-printed": FlopsConvention(
        "Tian et al. 2025, Eq. 10-12 as printed: with 1 for 2 in attention, 4 for 6 in the shared expert, and logits",
        _tian_printed,
    ),
    "resources": FlopsConvention(
        "ICLR 2026 resource equation, Eq. 5 and 17: 3·(2·N_a + 4·D_m·S·L)",
        lambda a, s: 3 * _block_flops(flops_per_token(square(a), s)),
    ),
}
"""Conventions for training FLOPs per token, by the paper's name."""
