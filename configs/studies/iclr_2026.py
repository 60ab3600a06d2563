"""The experiments behind "MoE needs a more aggressive data scaling strategy" (Li et al., ICLR 2026).

Purpose:  find a strong backbone (arrangement, gates, top-K, shape), then the best activation rate at equal N and C,
          then the cost of repeated tokens. Two parts repeat experiments of others that the explainer cites.
Paper:    Its explainer: Appendices A (resource equation), B (DeepSeekMoE, Kimi K2), C (Tables 4 to 6, Figure 7), E
          (Table 8) and F (13 % point, 14B, unique tokens).
Command:  moejax study --config=configs/studies/iclr_2026.py:activation-rate --config.recipe.data.source=PATH
          The argument selects a part; times are at 40 % MFU:

| part                       | trains                                                         | FLOPs  | H100 hours |
|----------------------------|----------------------------------------------------------------|--------|------------|
| :arrangement               | Table 4's full, interleave and 1dense; shared experts by ratio | 8.9e21 | 4,460      |
| :gates                     | gates with and without normalization                           | 5.9e21 | 2,950      |
| :top-K                     | three groups of equal activation rate                          | 8.8e21 | 4,600      |
| :shape                     | all combinations of zeta and mu                                | 2.2e22 | 11,300     |
| :activation-rate (default) | activation rates at equal N and C                              | 1.5e22 | 7,620      |
| :activation-rate-7B        | the same at 7B                                                 | 1.1e23 | 61,800     |
| :activation-rate-14B       | the same at 14B                                                | 4.3e23 | 252,000    |
| :re-search                 | other architectures at the 13 % point of 7B                    | 1.0e23 | 52,100     |
| :reuse                     | fewer unique tokens                                            | 7.6e21 | 3,790      |
| :annealing                 | another mixture of text during the decay                       | 6.6e21 | 3,400      |
| :greedy                    | all stages, each starting from the winner of the previous one  | 3.5e22 | 17,700     |
| :sparsity                  | Kimi's experts, from 8 to 64 times the active ones             | 9.4e21 | 4,540      |
| :deepseek                  | DeepSeekMoE 16B and the dense 7B                               | 1.3e23 | 82,900     |
| :tiny                      | small version, minutes on two cores                            | 4.2e12 |            |
| :tiny-greedy               | small version, minutes on two cores                            | 4.3e12 |            |
| :tiny-reuse                | small version, minutes on two cores                            | 3.5e12 |            |
| :tiny-annealing            | small version, minutes on two cores                            | 1.2e12 |            |

Data:     your own, with a tokenizer of at most 65,536 entries (:deepseek 102,400). For Table 8's mixture, put its six
          parts by name in a folder: --config.recipe.data.named_mixture=li-2026 --config.recipe.data.source=FOLDER.
Recipe:   All runs of a part have equal compute C: D = C/(3M) with the resource equation's M (Eqs. 5, 7, 17). An MoE
          model therefore gets D_MoE/D_dense = 1/R_c times the dense model's tokens (Eq. 25). Models use ALiBi, as in
          the paper.
Cost:     see the table; the cost of :greedy assumes that the expected models win.
Expected: 1dense+SE is not worse than the others. Normalization affects balance rather than loss. Top-K of 1 and of 22
          or 33 is worse than small top-K. The best activation rate is near 20 %, where the MoE model is better than the
          dense model; no architecture at 13 % is better than it; the best rate at 14B is not higher. The tiny parts
          have losses below the unigram entropy; :tiny and :tiny-reuse have a fit, :tiny-greedy a winner of each stage.
          :annealing lowers the loss on the parts with more weight in the decay, and raises it on the rest.

The explainer prints D_m = 1408, D_ffn = 3904, L = 16 or 17, heads of 64 or 128, K of Table 6, and S = 16384 for the
search over shapes (C.3) alone. Expert counts, rates, batches and tokens are in its figures or missing. Inferred:

- mu = 22 and an activation rate near 20 % throughout the backbone (88 units of D_m/4 in a layer, 14 of them active; for
  top-K, few experts whose width gives the printed rates): the explainer calls mu = 22 representative and 20 % best.
  N and N_a are equal within each comparison, because its Step 1 compares shapes, not sizes.
- S = 16384 in every part but :deepseek, not only in C.3; R_c, and with it the tokens of every mixture, depends on S.
  bfloat16 compute, which the hours assume.
- Table 4: its rows are in an image. Its losses form three groups (full and interleave near 1.67, 1dense+SE and
  interleave near 1.86, shared ratios near 1.67), so they belong to different models or tokens, which are not printed.
  Here they are one group, and all its losses can be compared. The text has two interleave rows next to full, taken as
  without and with shared experts, and three shared ratios D_se/(K·D_e), taken as 0, 2/5 and 1: 1.6752 and 1.6726 are
  Table 5's rows without and with D_se = K·D_e. Table 5 also has 1.6712, for D_se = K·D_e without normalization. If that
  is the third row, although C.1 has Norm = True, then the paper did not train the ratio 2/5.
- Rate and batch follow Tian's Eq. 5. Tokens are 20 per parameter of the dense model of equal N.
- 7B: 24 layers of width 2048, zeta = 85. 14B: the same layers and width, with N doubled through mu, as Appendix F
  argues. The dense models have zeta of 85 to 91 and the same alpha.
- :re-search: the explainer does not state what it searches again. Here: experts of half and twice the width,
  interleaved layers, no shared expert, and zeta of 64 and 114.
- Steps: the text numbers only the first step and calls the sweep a later one. Reuse as the third step is our choice,
  because Appendix F asks for an accounting of unique tokens: all tokens new, or as many unique ones as the dense model
  reads, or a half or a quarter of these. :reuse has three sizes and budgets, for the law of repeated tokens.
- :annealing: Appendix F proposes "a controlled high-quality annealing stage", whose unique tokens need care because a
  mixture and a dense model read different numbers of tokens. It gives no data and no length. Here it is the last fifth,
  in which the learning rate falls: half Table 8's web text, half its five other parts by their weights (a fifth of the
  mixture before). ra20-annealed-short decays over as many tokens as the dense model.
- :sparsity: eight experts and one shared serve a token (B.2) in this backbone; B.2 does not give Kimi's own shape.
- :deepseek: shapes as their authors published them; 2T tokens (B.1).
"""

from __future__ import annotations

import functools
import itertools
import math
import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.data.mixtures import MIXTURES
from moejax.laws.budget.resources import active_ratio
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.conventions import FLOPS, PARAMS

Shape = dict[str, Any]
"""Settings of an architecture."""

WIDTH, HIDDEN, LAYERS, SEQUENCE = 1408, 3904, 16, 16_384
MU = 22
"""(D_se + E·D_e)/D_m of a layer with experts, in a model without dense layers."""
TOKENS_PER_PARAM = 20
"""Tokens per parameter of the dense model, whose compute every run gets."""
RATES = (0.1, 0.13, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7)
"""Activation rates r_a = N_a/N of the sweeps."""
RATE = 0.2
"""Activation rate of the backbone."""
DECAY_SHARE = 0.2
"""Share of a run in which the learning rate decays."""
SPARSITIES = (8, 16, 24, 32, 48, 64)
"""Ratios E/K of Kimi's experiment."""


class Scale(NamedTuple):
    """A size at which MoE models are compared with a dense model of equal N."""

    width: int
    layers: int
    head_dim: int
    dense: tuple[int, int]
    """Width and layers of the dense model."""
    mu: float = MU
    experts_per_width: int = 4
    """Ratio of D_m to the width of an expert."""
    vocabulary: int = 65_536
    sequence: int = SEQUENCE
    dense_tokens: int = 0
    """Training tokens of the dense model; 0 for ``TOKENS_PER_PARAM``."""

    @property
    def unit(self) -> int:
        """Return the width of an expert of the backbone."""
        return self.width // self.experts_per_width


SCALES = {
    "2B": Scale(WIDTH, LAYERS, 128, (2560, 28)),
    "7B": Scale(2048, 24, 128, (3712, 41)),
    # N doubles through mu alone: 2·22 + 4/3 (Eq. 14 without dense layers).
    "14B": Scale(2048, 24, 128, (4608, 54), mu=2 * MU + 4 / 3),
    "tiny": Scale(32, 4, 16, (64, 4), 15, experts_per_width=2, vocabulary=257, sequence=128, dense_tokens=131_072),
}


def get_config(part: str = "activation-rate") -> ConfigDict:
    """Return the study of one part."""
    config = ConfigDict()
    config.name = f"iclr_2026-{part}"
    config.seed = 0
    if part not in PARTS:
        raise ValueError(f"there is no {part!r}; there are {', '.join(PARTS)}")
    made = PARTS[part]()
    tiny = part.startswith("tiny")
    trained = recipe(made.get("sequence", SEQUENCE)) | (SMALL if tiny else {})
    config.recipe = trained | dict(data=trained["data"] | made.get("data", {}))
    config.models, config.recipes = made["models"], made["recipes"]
    asked = dict(decision_flops=1e13, resamples=40) if tiny else dict(decision_flops=1e22)
    config.analysis = dict(laws=["chinchilla", "effective_params"]) | asked | made.get("analysis", {})
    config.stages = made.get("stages", [])
    return config


def backbone(scale: Scale = SCALES["2B"], **changes: Any) -> Shape:
    """Return a scale's layers with experts of a quarter of the width, and with changes; ``filled`` sets the number of
    experts.
    """
    heads = scale.width // scale.head_dim
    shape = dict(vocab_size=scale.vocabulary, model_dim=scale.width, num_layers=scale.layers, head_dim=scale.head_dim)
    shape |= dict(num_heads=heads, num_kv_heads=heads, dense_hidden=hidden(scale.width))
    active = math.ceil(active_ratio(RATE, scale.mu) * scale.experts_per_width)
    shape |= dict(num_experts=round(scale.mu * scale.experts_per_width), top_k=active, expert_hidden=scale.unit)
    return shape | dict(positions="alibi", tied_embeddings=False, norm_topk_prob=False) | changes


def hidden(width: int) -> int:
    """Return D_ffn of a dense layer, by alpha = 3904/1408."""
    return round(HIDDEN / WIDTH * width)


def sizes(shape: Shape) -> tuple[float, float]:
    """Return N and N_a, by Eqs. 14 and 15."""
    architecture = Architecture(**shape)
    return PARAMS["resources"].total(architecture), PARAMS["resources"].active(architecture)


@functools.cache
def size(scale: Scale) -> float:
    """Return the N of all models of a scale: the N of a model with mu in every layer."""
    return sizes(backbone(scale))[0]


def filled(shape: Shape, total: float, active: float, ratio: float = 1.0) -> Shape:
    """Return the same layers with the number of experts that gives these N and N_a; D_se = ``ratio``·K·D_e.

    With a single active expert, weights are never normalized: the weight would be 1 and give the router no gradient.
    """
    alone = dict(top_k=1, num_shared_experts=0, shared_hidden=0)
    one, two = (sizes(shape | alone | dict(num_experts=number))[0] for number in (1, 2))
    per_expert, width = two - one, shape["expert_hidden"]
    rest = one - per_expert
    chosen = max(1, round((active - rest) / per_expert / (1 + ratio)))
    shared = round(ratio * chosen * width)
    experts = max(chosen, round((total - rest) / per_expert - shared / width))
    mixture = dict(num_experts=experts, top_k=chosen, num_shared_experts=int(shared > 0), shared_hidden=shared)
    return shape | mixture | dict(norm_topk_prob=shape["norm_topk_prob"] and chosen > 1)


def dense(scale: Scale = SCALES["2B"]) -> Shape:
    """Return a dense model with as many parameters, zeta near 88 and the same alpha (Eq. 6)."""
    width, layers = scale.dense
    alone = dict(num_experts=0, top_k=0, expert_hidden=0, dense_hidden=hidden(width))
    return backbone(scale._replace(width=width, layers=layers), **alone)


@functools.cache
def compute(scale: Scale) -> float:
    """Return the compute C of every run of a scale: the dense model's training FLOPs."""
    tokens = scale.dense_tokens or TOKENS_PER_PARAM * PARAMS["resources"].total(Architecture(**dense(scale)))
    return tokens * FLOPS["resources"].per_token(Architecture(**dense(scale)), scale.sequence)


def tokens(shape: Shape, scale: Scale) -> int:
    """Return the tokens D at the compute of a scale, by Eqs. 23 to 25."""
    return int(compute(scale) / FLOPS["resources"].per_token(Architecture(**shape), scale.sequence))


def compared(models: dict[str, Shape], scale: Scale, parts: tuple[int, ...] = (2, 1), **also: Any) -> dict[str, Any]:
    """Return models with two budgets of equal compute: ``1/part`` of the scale's compute, and all of it."""
    own = {
        name: dict(budgets_tokens=[tokens(shape, scale) // part for part in parts]) for name, shape in models.items()
    }
    return dict(models=models, recipes=own, **also)


def arrangements(scale: Scale) -> dict[str, Shape]:
    """Return Table 4's shapes of equal N and N_a: fewer MoE layers have more experts, and more of them active."""
    total, active = sizes(backbone(scale))
    gates = dict(norm_topk_prob=True)
    layers = {
        "full": (backbone(scale, **gates), 0),
        "interleave": (backbone(scale, **gates, layer_pattern="DE"), 0),
        "interleave-SE": (backbone(scale, **gates, layer_pattern="DE"), 1),
        "1dense": (backbone(scale, **gates, num_dense_layers=1), 0),
        "1dense-SE40": (backbone(scale, **gates, num_dense_layers=1), 2 / 5),
        "1dense-SE": (backbone(scale, **gates, num_dense_layers=1), 1),
    }
    return {name: filled(shape, total, active, ratio) for name, (shape, ratio) in layers.items()}


def arrangement() -> dict[str, Any]:
    """Return one of Table 4's variants."""
    return compared(arrangements(SCALES["2B"]), SCALES["2B"])


def gates() -> dict[str, Any]:
    """Return Table 5: L = 17, 22 heads of 64, one dense layer; with and without a shared expert."""
    scale = SCALES["2B"]._replace(layers=17, head_dim=64)
    shape = backbone(scale, num_dense_layers=1)
    # Expert counts of a model with 16 layers.
    kinds = {"SE": filled(backbone(num_dense_layers=1), *sizes(backbone())), "no-SE": {}}
    kinds["no-SE"] = filled(backbone(num_dense_layers=1), *sizes(backbone()), ratio=0)
    names = ("num_experts", "top_k", "num_shared_experts", "shared_hidden")
    found = {
        f"{kind}-{'normalized' if norm else 'plain'}": shape
        | {name: experts[name] for name in names}
        | dict(norm_topk_prob=norm)
        for (kind, experts), norm in itertools.product(kinds.items(), (True, False))
    }
    return compared(found, SCALES["2B"])


TOP_K = {"ra27": (1, 5, 3.3), "ra44": (2, 5, 4.5), "ra58": (3, 6, 1.4)}
"""K of Table 6 and its activation rates; experts and their width in D_m that give these with one dense layer."""


def top_k() -> dict[str, Any]:
    """Return Table 6: 1dense without a shared expert; each model also with every expert split into eleven."""
    found = {}
    for (group, (active, experts, wide)), cut in itertools.product(TOP_K.items(), (1, 11)):
        mixture = dict(num_experts=cut * experts, top_k=cut * active, expert_hidden=round(wide * WIDTH / cut))
        found[f"{group}-K{cut * active}"] = backbone(SCALES["2B"], num_dense_layers=1, **mixture)
    return compared(found, SCALES["2B"])


def shape() -> dict[str, Any]:
    """Return Figure 7: zeta = D_m/L from 44 to 176 and mu from 11 to 44, one dense layer, 20 % active."""
    found = {}
    for layers, mu in itertools.product((8, 12, 16, 24, 32), (11, 22, 44)):
        # Half of the active width is the shared expert's, in units of D_m/4.
        active = round(active_ratio(RATE, mu) * 4 / 2)
        experts = dict(
            num_experts=4 * mu - active, top_k=active, num_shared_experts=1, shared_hidden=active * WIDTH // 4
        )
        layered = SCALES["2B"]._replace(layers=layers)
        found[f"zeta{WIDTH / layers:.0f}-mu{mu}"] = backbone(layered, num_dense_layers=1, **experts)
    return compared(found, SCALES["2B"])


def by_rate(layers: Shape, total: float, rates: tuple[float, ...], ratio: float = 1.0) -> dict[str, Shape]:
    """Return MoE models of equal N; r_a through beta at fixed N, L, D_m and mu (Eq. 27)."""
    return {f"ra{100 * rate:.0f}": filled(layers, total, rate * total, ratio) for rate in rates}


def activation_rate(name: str = "2B") -> dict[str, Any]:
    """Return a dense model and MoE models of equal N at every activation rate."""
    scale = SCALES[name]
    models = by_rate(backbone(scale, num_dense_layers=1), size(scale), RATES)
    return compared({"dense": dense(scale), **models}, scale)


def re_search() -> dict[str, Any]:
    """Return the 13 % point of 7B with other architectures, the 20 % point and the dense model."""
    scale = SCALES["7B"]
    total, active, layers = size(scale), 0.13 * size(scale), dict(num_dense_layers=1)
    one = backbone(scale, **layers)
    models = {"dense": dense(scale), **by_rate(one, total, (0.13, RATE))}
    models |= {
        "ra13-fine": filled(one | dict(expert_hidden=scale.unit // 2), total, active),
        "ra13-coarse": filled(one | dict(expert_hidden=2 * scale.unit), total, active),
        "ra13-interleave-SE": filled(backbone(scale, layer_pattern="DE"), total, active),
        "ra13-no-SE": filled(one, total, active, ratio=0),
        "ra13-zeta114": filled(one | dict(num_layers=18), total, active),
        "ra13-zeta64": filled(one | dict(num_layers=32), total, active),
    }
    return compared(models, scale, stages=[dict(name="re-search", references=["dense", "ra20"])])


def reuse(scales: tuple[Scale, ...]) -> dict[str, Any]:
    """Return the 20 % MoE model at several sizes, with all tokens unique, with as many unique tokens as the dense model
    reads, or with fewer.
    """
    models, recipes = {}, {}
    for scale in scales:
        total = size(scale)
        mixture = filled(backbone(scale, num_dense_layers=1), total, RATE * total)
        name = f"d{scale.width}"
        budgets = dict(budgets_tokens=[tokens(mixture, scale) // part for part in (4, 2, 1)])
        models[f"{name}-new"], recipes[f"{name}-new"] = mixture, budgets
        for share in (1, 2, 4):
            unique = f"{name}-unique{share}"
            models[unique] = mixture
            recipes[unique] = budgets | dict(data=dict(unique_tokens=tokens(dense(scale), scale) // share))
    return dict(models=models, recipes=recipes, analysis=dict(laws=["data_constrained"]))


REUSED = (
    SCALES["2B"]._replace(width=768, layers=9, dense=(1408, 15)),
    SCALES["2B"]._replace(width=1024, layers=12, dense=(1792, 22)),
    SCALES["2B"],
)
"""Scales of the study of repeated tokens, with zeta near 88."""


def annealing(scale: Scale, data: dict[str, Any], decay: dict[str, float]) -> dict[str, Any]:
    """Return a dense model and the 20 % MoE model, each with one text mixture throughout and with a different mixture
    in the decay.
    """
    total = size(scale)
    mixture = filled(backbone(scale, num_dense_layers=1), total, RATE * total)
    own, annealed = {"dense": dense(scale), "ra20": mixture}, dict(data=dict(decay_mixture=decay))
    made = compared(
        {f"{name}{kind}": shape for name, shape in own.items() for kind in ("", "-annealed")}
        | {"ra20-annealed-short": mixture},
        scale,
        (1,),
        analysis=dict(laws=[]),
        data=data,
    )
    for name in made["models"]:
        made["recipes"][name] |= annealed if "annealed" in name else {}
    as_dense = DECAY_SHARE * tokens(dense(scale), scale) / tokens(mixture, scale)
    made["recipes"]["ra20-annealed-short"] |= dict(optimizer=dict(decay_share=as_dense))
    return made


def high_quality() -> dict[str, float]:
    """Return weights of half web text and half the other parts of Table 8."""
    parts = dict(MIXTURES["li-2026"].weights)
    web = parts.pop("WebData-en")
    assert web > sum(parts.values())
    return {"WebData-en": sum(parts.values()), **parts}


def sparsity() -> dict[str, Any]:
    """Return Kimi K2's experiment (B.2): 8 of 64 to 512 experts and one shared serve a token."""
    experts = dict(num_dense_layers=1, top_k=8, num_shared_experts=1)
    models = {f"S{times}": backbone(SCALES["2B"], **experts, num_experts=8 * times) for times in SPARSITIES}
    return compared(models, SCALES["2B"], (4, 2, 1), analysis=dict(laws=["effective_params"]))


def deepseek() -> dict[str, Any]:
    """Return DeepSeekMoE 16B and the dense 7B model; the former takes 40 % of the latter's compute (B.1), and N
    differs.
    """
    models = {"DeepSeekMoE-16B": dump(CATALOGUE["deepseek-moe-16b"].architecture), "dense-7B": DENSE_7B}
    own = {name: dict(budgets_tokens=[2 * 10**12]) for name in models}
    return dict(models=models, recipes=own, sequence=4096, analysis=dict(laws=[]))


DENSE_7B: Shape = dict(vocab_size=102_400, model_dim=4096, num_layers=30, num_heads=32, num_kv_heads=32, head_dim=128)
DENSE_7B |= dict(dense_hidden=11_008, tied_embeddings=False)
"""DeepSeek LLM 7B as its authors published it (arXiv 2401.02954, Table 2)."""


def greedy(scale: Scale, rates: tuple[float, ...], layers: tuple[int, ...], cuts: tuple[int, ...]) -> dict[str, Any]:
    """Return the stages: four of Step 1, the activation rate, and reuse, each starting from the previous winner."""

    def carried(before: Any, others: dict[str, Shape], **also: Any) -> dict[str, Any]:
        """Return the previous winner, whose runs are reused, and other models."""
        return compared({before.winner: before.architecture, **others}, scale, (1,), **also)

    def ratio(found: Shape) -> float:
        return found["num_shared_experts"] * found["shared_hidden"] / found["top_k"] / found["expert_hidden"]

    def normalization(before: Any) -> dict[str, Any]:
        plain = f"{before.winner}-plain"
        return carried(before, {plain: before.architecture | dict(norm_topk_prob=False)}, expected=plain)

    def granularity(before: Any) -> dict[str, Any]:
        """Return the same experts at finer granularity, with K, E and the width scaled accordingly."""
        found = before.architecture
        others = {
            f"{before.winner}-K{cut * found['top_k']}": found
            | {name: cut * found[name] for name in ("num_experts", "top_k")}
            | dict(expert_hidden=found["expert_hidden"] // cut)
            for cut in cuts
        }
        one = found | dict(expert_hidden=found["expert_hidden"] * found["top_k"])
        if found["top_k"] > 1:
            others[f"{before.winner}-K1"] = filled(one, *sizes(found), ratio(found))
        return carried(before, others, expected=before.winner)

    def aspect(before: Any) -> dict[str, Any]:
        """Return other depths at equal N, N_a and width: zeta and mu fall as layers are added."""
        found = before.architecture
        others = {
            f"{before.winner}-L{deep}": filled(found | dict(num_layers=deep), *sizes(found), ratio(found))
            for deep in layers
        }
        return carried(before, others, expected=before.winner)

    def sweep(before: Any) -> dict[str, Any]:
        found = before.architecture
        total, active = sizes(found)
        # The winner already covers the rate nearest to its own.
        others = by_rate(found, total, tuple(r for r in rates if abs(r - active / total) > 0.015), ratio(found))
        own = dict(references=["dense"], expected=before.winner)
        return carried(before, {**others, "dense": dense(scale)}, **own)

    def repeats(before: Any) -> dict[str, Any]:
        """Return the winner with as many unique tokens as the dense model reads, and with a half and a quarter."""
        unique = tokens(dense(scale), scale)
        others = {f"{before.winner}-unique{share}": before.architecture for share in (1, 2, 4)}
        made = carried(before, {**others, "dense": dense(scale)}, references=["dense"])
        for name, share in zip(others, (1, 2, 4), strict=True):
            made["recipes"][name] |= dict(data=dict(unique_tokens=unique // share))
        return made

    stages = [
        dict(name="1-arrangement", expected="1dense-SE"),
        dict(name="1-gates", make=normalization),
        dict(name="1-top-K", make=granularity),
        dict(name="1-shape", make=aspect),
        dict(name="2-activation-rate", make=sweep),
        dict(name="3-reuse", make=repeats),
    ]
    return compared(arrangements(scale), scale, (1,), stages=stages, analysis=dict(laws=[]))


def tiny() -> dict[str, Any]:
    """Return two sizes: a dense model, and MoE models of equal N at three activation rates."""
    per_token = FLOPS["resources"].per_token
    spent = 160_000 * per_token(Architecture(**tiny_dense(64)), 128)
    models = {}
    for width in (48, 64):
        one = backbone(Scale(width, 3, 16, (0, 0), 8, vocabulary=257), dense_hidden=3 * width, num_dense_layers=1)
        for active in (1, 2, 6):
            experts = dict(
                num_experts=32 - active, top_k=active, num_shared_experts=1, shared_hidden=active * width // 4
            )
            models[f"d{width}-K{active}"] = one | experts
        models[f"d{width}-dense"] = tiny_dense(width)
    each = {name: spent / per_token(Architecture(**shape), 128) for name, shape in models.items()}
    return dict(
        models=models,
        recipes={
            name: dict(budgets_tokens=[int(all_of_them / 2), int(all_of_them)]) for name, all_of_them in each.items()
        },
    )


def tiny_dense(width: int) -> Shape:
    """Return the dense model that ``tiny`` compares with MoE models of a width."""
    wide = Scale(2 * width, 2, 16, (0, 0), vocabulary=257)
    return backbone(wide, num_experts=0, top_k=0, expert_hidden=0, dense_hidden=5 * width)


TINY_REUSED = tuple(
    SCALES["tiny"]._replace(width=width, dense=(2 * width, 4), dense_tokens=65_536) for width in (32, 48, 64)
)
PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "arrangement": arrangement,
    "gates": gates,
    "top-K": top_k,
    "shape": shape,
    "activation-rate": activation_rate,
    "activation-rate-7B": lambda: activation_rate("7B"),
    "activation-rate-14B": lambda: activation_rate("14B"),
    "re-search": re_search,
    "reuse": lambda: reuse(REUSED),
    "greedy": lambda: greedy(SCALES["2B"], RATES, layers=(8, 12, 24, 32), cuts=(2, 4)),
    "sparsity": sparsity,
    "deepseek": deepseek,
    "tiny": tiny,
    "tiny-greedy": lambda: greedy(SCALES["tiny"], (0.15, 0.3, 0.5), layers=(3, 6), cuts=(2,)),
    "tiny-reuse": lambda: reuse(TINY_REUSED),
    "annealing": lambda: annealing(SCALES["2B"], dict(named_mixture="li-2026"), high_quality()),
    "tiny-annealing": lambda: annealing(SCALES["tiny"], TINY_ANNEALED, dict(code=1.0, prose=1.0)),
}
TINY_ANNEALED: dict[str, Any] = dict(
    # Texts of every installation: JAX's code, and the English of Python's help().
    mixture=[
        dict(name="code", source=str(Path(jax.__file__).parent), weight=1.0),
        dict(name="prose", source=pydoc_data.topics.__file__, weight=0.0),
    ]
)
SMALL: dict[str, Any] = dict(
    batch_tokens=2_048,
    runtime=dict(),
    data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
    optimizer=dict(learning_rate=6e-3, warmup_tokens=16_384),
)


def recipe(sequence_length: int = SEQUENCE) -> dict[str, Any]:
    """Return a recipe by compute for the settings that the explainer does not specify."""
    return dict(
        budgets_tokens=[],
        batch_tokens=0,
        hyperparameters="tian-2025",
        data=dict(source="", sequence_length=sequence_length, validation_tokens=2**23),
        optimizer=dict(learning_rate=0.0, warmup_tokens=2**28, decay_share=DECAY_SHARE, weight_decay=0.1),
        loss=dict(balance=0.01, router_z=0.0),
        runtime=dict(compute_dtype="bfloat16"),
        checkpoint_tokens=2**31,
    )
