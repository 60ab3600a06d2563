"""The experiments behind "MoE needs a more aggressive data scaling strategy" (Li et al., ICLR 2026).

Purpose:  a strong backbone first (arrangement, gates, top-K, shape), then the activation rate at equal N and equal C.
Paper:    Its explainer, Appendices A (resource equation) and C (Tables 4 to 6, Figure 7).
Command:  moejax study --config=configs/studies/iclr_2026.py:activation-rate --config.recipe.data.source=PATH
          :arrangement full, interleave, 1dense, 1dense+SE; :gates with and without normalisation; :top-K, three groups
          of equal activation rate; :shape, zeta by mu; :activation-rate (the default); :tiny, the last one here.
Data:     yours, with a tokenizer of at most 65,536 entries; the paper has the mixture of its Table 3.
Recipe:   equal compute C for every run of a part: D = C/(3M) with the resource equation's M (Eqs. 5, 7, 17), so that a
          mixture gets D_MoE/D_dense = 1/R_c times the dense model's tokens (Eq. 25). ALiBi, as the paper has.
Cost:     :activation-rate 1.3e22 FLOPs, 6,900 H100 hours at 40 % MFU; :arrangement 5.9e21 and 2,970; :gates 5.9e21 and
          2,950; :top-K 8.8e21 and 4,600; :shape 2.2e22 and 11,300; :tiny 4.2e12 FLOPs, minutes on two cores.
Expected: 1dense+SE no worse than the others; normalisation changes balance more than loss; top-K of 1 and of 22 or 33
          worse than few; the best activation rate near 20 %, there better than dense. Of :tiny, losses below the
          unigram entropy and a fit.

The explainer prints D_m = 1408, D_ffn = 3904, L = 16 or 17, heads of 64 or 128, S = 16384, and K of Table 6; expert
counts, rates, batches and tokens are in its figures or not at all. Chosen here: mu = 22 and an activation rate near
20 % throughout the backbone (88 units of D_m/4 in a layer, 14 of them active; of top-K, few experts whose width gives
the printed rates), equal N and N_a within each comparison, 20 tokens per parameter of a dense model of 2.26B, rate and
batch by Tian's Eq. 5.
"""

from __future__ import annotations

import itertools
from typing import Any

from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.laws.conventions import FLOPS, PARAMS

WIDTH, HIDDEN, LAYERS, SEQUENCE = 1408, 3904, 16, 16_384
UNIT = WIDTH // 4
"""Expert width D_e of the backbone."""
TOKENS_PER_PARAM = 20
"""Of the dense model, whose compute every run gets."""
RATES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7)
"""Activation rates r_a = N_a/N of the sweep."""


def get_config(part: str = "activation-rate") -> ConfigDict:
    """The study of one part."""
    config = ConfigDict()
    config.name = f"iclr_2026-{part}"
    config.seed = 0
    if part not in PARTS:
        raise ValueError(f"there is no {part!r}; there are {', '.join(PARTS)}")
    tiny = part == "tiny"
    config.models = PARTS[part]()
    config.recipe = recipe() | (SMALL if tiny else {})
    config.recipes = {name: dict(budgets_tokens=budgets(part, shape)) for name, shape in PARTS[part]().items()}
    asked = dict(decision_flops=1e13, resamples=40) if tiny else dict(decision_flops=1e22)
    config.analysis = dict(laws=["chinchilla", "effective_params"]) | asked
    return config


def backbone(**changes: Any) -> dict[str, Any]:
    """Mixtures of 14 of 88 experts of a quarter of the width in every layer, some of it changed."""
    shape = dict(vocab_size=65_536, model_dim=WIDTH, num_layers=LAYERS, num_heads=11, num_kv_heads=11, head_dim=128)
    shape |= dict(dense_hidden=HIDDEN, num_experts=88, top_k=14, expert_hidden=UNIT)
    return shape | dict(positions="alibi", tied_embeddings=False, norm_topk_prob=False) | changes


def shared(top_k: int, unit: int = UNIT) -> dict[str, Any]:
    """A shared expert as wide as the K routed ones that serve a token: D_se = K·D_e."""
    return dict(top_k=top_k, num_shared_experts=1, shared_hidden=top_k * unit)


def arrangement() -> dict[str, dict[str, Any]]:
    """Table 4: equal N and N_a, so that fewer mixture layers have more experts, and more of them active."""
    gates = dict(norm_topk_prob=True)
    return {
        "full": backbone(**gates),
        "interleave": backbone(**gates, layer_pattern="DE", num_experts=165, top_k=17),
        "1dense": backbone(**gates, num_dense_layers=1, num_experts=93, top_k=14),
        "1dense-SE": backbone(**gates, num_dense_layers=1, num_experts=86, **shared(7)),
    }


def gates() -> dict[str, dict[str, Any]]:
    """Table 5: L = 17, 22 heads of 64, one dense layer; with and without a shared expert."""
    fixed = dict(num_layers=17, num_heads=22, num_kv_heads=22, head_dim=64, num_dense_layers=1)
    kinds = {"SE": dict(num_experts=86, **shared(7)), "no-SE": dict(num_experts=93)}
    return {
        f"{kind}-{'normalised' if norm else 'plain'}": backbone(**fixed, **experts, norm_topk_prob=norm)
        for (kind, experts), norm in itertools.product(kinds.items(), (True, False))
    }


TOP_K = {"ra27": (1, 5, 3.3), "ra44": (2, 5, 4.5), "ra58": (3, 6, 1.4)}
"""K of Table 6 and its activation rates; experts and their width in D_m that give these with one dense layer."""


def top_k() -> dict[str, dict[str, Any]]:
    """Table 6: 1dense without a shared expert; each expert against the same cut into eleven, K and E with it."""
    found = {}
    for (group, (active, experts, wide)), cut in itertools.product(TOP_K.items(), (1, 11)):
        mixture = dict(num_experts=cut * experts, top_k=cut * active, expert_hidden=round(wide * WIDTH / cut))
        found[f"{group}-K{cut * active}"] = backbone(num_dense_layers=1, **mixture)
    return found


def shape() -> dict[str, dict[str, Any]]:
    """Figure 7: zeta = D_m/L from 44 to 176 and mu from 11 to 44, one dense layer, a fifth active."""
    found = {}
    for layers, mu in itertools.product((8, 12, 16, 24, 32), (11, 22, 44)):
        active = round((0.2 * (4 + 3 * mu) - 4) / 3 * 4 / 2)
        experts = dict(num_experts=4 * mu - active, **shared(active))
        found[f"zeta{WIDTH / layers:.0f}-mu{mu}"] = backbone(num_layers=layers, num_dense_layers=1, **experts)
    return found


def activation_rate() -> dict[str, dict[str, Any]]:
    """Dense and mixtures of equal N; r_a through beta at fixed N, L, D_m and mu (Eq. 27)."""
    found = {"dense": dense()}
    for rate in RATES:
        beta = (rate * (4 + 3 * 22) - 4) / 3
        active = round(beta * WIDTH / UNIT / 2)
        found[f"ra{100 * rate:.0f}"] = backbone(num_dense_layers=1, num_experts=93 - active, **shared(active))
    return found


def dense(width: int = 2560, layers: int = 28, head_dim: int = 128, **changes: Any) -> dict[str, Any]:
    """As many parameters in a dense model of zeta near 88 and the same alpha (Eq. 6)."""
    heads = width // head_dim
    attention = dict(num_heads=heads, num_kv_heads=heads, head_dim=head_dim)
    alone = dict(num_experts=0, top_k=0, expert_hidden=0, dense_hidden=round(HIDDEN / WIDTH * width))
    return backbone(model_dim=width, num_layers=layers, **attention, **alone) | changes


def tiny() -> dict[str, dict[str, Any]]:
    """Two sizes: a dense model, and mixtures of equal N at three activation rates."""
    found = {}
    for width in (48, 64):
        small = dict(vocab_size=257, model_dim=width, num_layers=3, num_heads=width // 16, num_kv_heads=width // 16)
        small |= dict(head_dim=16, expert_hidden=width // 4, dense_hidden=3 * width, num_dense_layers=1)
        for active in (1, 2, 6):
            found[f"d{width}-K{active}"] = backbone(**small, num_experts=32 - active) | shared(active, width // 4)
        found[f"d{width}-dense"] = dense(2 * width, 2, 16, vocab_size=257, dense_hidden=5 * width)
    return found


PARTS = {
    "arrangement": arrangement,
    "gates": gates,
    "top-K": top_k,
    "shape": shape,
    "activation-rate": activation_rate,
    "tiny": tiny,
}
SMALL: dict[str, Any] = dict(
    batch_tokens=2_048,
    data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
    optimizer=dict(learning_rate=6e-3, warmup_tokens=16_384),
)


def budgets(part: str, shape: dict[str, Any]) -> list[int]:
    """Tokens at a half and all of the compute that the dense model gets: its token multiplier, Eqs. 23 to 25."""
    tiny = part == "tiny"
    length = 128 if tiny else SEQUENCE
    per_token = FLOPS["resources"].per_token
    reference = Architecture(**(dense(128, 2, 16, vocab_size=257, dense_hidden=320) if tiny else dense()))
    size = 8_000 if tiny else PARAMS["resources"].total(reference)
    compute = TOKENS_PER_PARAM * size * per_token(reference, length)
    tokens = compute / per_token(Architecture(**shape), length)
    return [int(tokens / 2), int(tokens)]


def recipe(**changes) -> dict:
    """What the explainer leaves open, by compute."""
    return (
        dict(
            budgets_tokens=[],
            batch_tokens=0,
            hyperparameters="tian-2025",
            data=dict(source="", sequence_length=SEQUENCE, validation_tokens=2**23),
            optimizer=dict(learning_rate=0.0, warmup_tokens=2**28, decay_share=0.2, weight_decay=0.1),
            loss=dict(balance=0.01, router_z=0.0),
            checkpoint_tokens=2**31,
        )
        | changes
    )
