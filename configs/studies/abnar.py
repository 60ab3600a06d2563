"""The sparsity and IsoFLOP grid of Abnar et al. (2025), "Parameters vs FLOPs: Scaling Laws for Optimal Sparsity".

Purpose:  IsoFLOP surfaces over size and sparsity, and the law of Eq. 6 with its held-out sparsity.
Paper:    Section 2, Appendix B (Table 1), Appendix C (FLOPs), Appendix D.1 (budgets).
Command:  moejax study --config=configs/studies/abnar.py --config.recipe.data.source=PATH
          :grid (the default), sizes by sparsities by budgets; :search, Table 1's whole search space at one size and
          budget for every sparsity; :tiny, the grid's design in minutes here.
Data:     yours, tokenised by GPT-NeoX's tokenizer (50,432 entries); the paper has a part of RedPajama v1.
Recipe:   dropless, 1024 sequences of 2048 a batch, QK-norm, router z-loss of 0.001 and no jitter, warm-up to a rate of
          0.002 and a cosine over the rest, without a shared trunk: one training per cell. Adam with decay of 1e-5 that
          does not scale with the rate, so 1e-5/rate here.
Cost:     :grid 157 runs, 5.0e22 FLOPs, 33,100 H100 hours at 40 % MFU; :search 225 runs, 2.2e22 and 14,500 hours;
          :tiny 18 runs, 3.6e12 FLOPs, minutes on two cores.
Expected: at each budget, loss falls with sparsity while the best N rises and the best N_a falls (Figures 2 and 3). Of
          :tiny, losses below the unigram entropy and a fit of two laws.

The paper prints neither shapes nor sequence length, expert counts or the floor of the decay. Chosen here: width 64
times the layers, heads of 64, experts of 4·d_model/granularity as in Appendix C, as few experts as make the sparsity
exact, 2048 tokens a sequence, a decay to 0. Tokens are the budget over Appendix C's FLOPs per token; sizes are those
that get between 2 and 500 tokens per active parameter.
"""

from __future__ import annotations

import itertools
from typing import Any

from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.laws.accounting import params
from moejax.laws.conventions import FLOPS

SPARSITIES = {0: (1, 1), 25: (4, 3), 50: (2, 1), 75: (4, 1), 90: (10, 1), 95: (20, 1), 98: (50, 1)}
"""Total and active experts by sparsity in percent (Table 1), at a granularity of 1; 0 is a dense model."""
BUDGETS = (3e19, 6e19, 1e20, 3e20, 1e21)
"""Appendix D.1."""
WIDTHS = (512, 768, 1024, 1280, 1536, 2048, 2560, 3072)
GRANULARITIES, RATES, BALANCES, WARMUPS = (1, 2), (0.003, 0.002, 0.001), (0.02, 0.05), (0.02, 0.05, 0.1)
"""Table 1's search space."""
SEQUENCE, BATCH = 2048, 1024 * 2048
TOKENS_PER_PARAM = (2, 500)


def get_config(part: str = "grid") -> ConfigDict:
    """The study of one part."""
    config = ConfigDict()
    config.name = f"abnar-{part}"
    config.seed = 0
    if part not in PARTS:
        raise ValueError(f"there is no {part!r}; there are {', '.join(PARTS)}")
    cells = list(PARTS[part]())
    tiny = part == "tiny"
    config.models = {name: model for name, model, _ in cells}
    config.recipes = {name: exceptions for name, _, exceptions in cells}
    config.recipe = recipe() | (SMALL if tiny else {})
    laws = ["effective_params", "chinchilla"] if tiny else ["sparsity", "effective_params"]
    # Appendix F fits without the sparsest models and predicts them.
    asked = dict(hold_out="sparsity", decision_flops=1e13 if tiny else 1e21, resamples=40 if tiny else 300)
    config.analysis = dict(laws=laws) | asked
    if part == "grid":
        config.stated = [
            dict(quantity="flops", value=budgets_together(cells), source="the budgets, Appendix C's FLOPs")
        ]
    return config


def model(
    sparsity: int, width: int, granularity: int = 1, vocabulary: int = 50_432, head_dim: int = 64
) -> dict[str, Any]:
    """The shape of a width at a sparsity in percent."""
    heads = width // head_dim
    shape = dict(vocab_size=vocabulary, model_dim=width, num_layers=heads, num_heads=heads, num_kv_heads=heads)
    shape |= dict(head_dim=head_dim, qk_norm=True, tied_embeddings=False)
    total, active = (granularity * count for count in SPARSITIES[sparsity])
    if not sparsity:
        return shape | dict(dense_hidden=4 * width)
    return shape | dict(num_experts=total, top_k=active, expert_hidden=4 * width // granularity)


def cell(name: str, shape: dict[str, Any], flops: float, rate=0.002, warmup=0.05, balance=0.02, sequence=SEQUENCE):
    """One training: a shape to the end of a budget."""
    tokens = int(flops / FLOPS["abnar"].per_token(Architecture(**shape), sequence))
    optimizer = dict(learning_rate=rate, warmup_tokens=int(warmup * tokens), weight_decay=1e-5 / rate)
    exceptions: dict[str, Any] = dict(budgets_tokens=[tokens], optimizer=optimizer, loss=dict(balance=balance))
    return name, shape, exceptions


def grid():
    """Every width that suits a budget, at every sparsity."""
    for flops, sparsity, width in itertools.product(BUDGETS, SPARSITIES, WIDTHS):
        one = cell(f"C{flops:.0e}-S{sparsity}-d{width}".replace("+", ""), model(sparsity, width), flops)
        per_param = one[2]["budgets_tokens"][0] / params(Architecture(**one[1])).active
        if TOKENS_PER_PARAM[0] <= per_param <= TOKENS_PER_PARAM[1]:
            yield one


def search():
    """Table 1's search at 1e20 FLOPs and a width of 1024. Granularity means nothing to a dense model."""
    for sparsity, g, rate, balance, warmup in itertools.product(SPARSITIES, GRANULARITIES, RATES, BALANCES, WARMUPS):
        if sparsity or (g == 1 and balance == BALANCES[0]):
            name = f"S{sparsity}-G{g}-rate{1000 * rate:g}-balance{100 * balance:g}-warm{100 * warmup:g}"
            yield cell(name, model(sparsity, 1024, g), 1e20, rate, warmup, balance)


def tiny():
    """Two budgets, three widths, three sparsities."""
    for flops, sparsity, width in itertools.product((1e11, 3e11), (0, 50, 90), (32, 48, 64)):
        shape = model(sparsity, width, vocabulary=257, head_dim=16)
        yield cell(f"C{flops:.0e}-S{sparsity}-d{width}".replace("+", ""), shape, flops, rate=0.006, sequence=128)


PARTS = {"grid": grid, "search": search, "tiny": tiny}


def budgets_together(cells) -> float:
    """FLOPs of the budgets together."""
    return sum(float(name.removeprefix("C").split("-")[0]) for name, *_ in cells)


SMALL: dict[str, Any] = dict(
    batch_tokens=2_048,
    data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
)


def recipe(**changes: Any) -> dict[str, Any]:
    """Appendix B."""
    return (
        dict(
            budgets_tokens=[],
            batch_tokens=BATCH,
            data=dict(source="", sequence_length=SEQUENCE, validation_tokens=2**23),
            optimizer=dict(decay_share=1.0, decay_shape="cosine", final_share=0.0, beta1=0.9, beta2=0.95, epsilon=1e-8),
            loss=dict(balance=0.02, router_z=0.001),
            checkpoint_tokens=0,
        )
        | changes
    )
