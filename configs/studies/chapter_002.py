"""The protocol of the book chapter "MoE Scaling Laws": twenty proxies, a larger held-out run, and a pilot.

Purpose:  refit alpha, beta and gamma of the effective-parameter law to new data, and test it before a large run.
Paper:    Book chapter "MoE Scaling Laws" (chapter 002), its closing check list and Engineering Reality, 3.
Command:  moejax study --config=configs/studies/chapter_002.py --config.recipe.data.source=PATH
          The argument selects a part; times are at 40 % MFU:

| part               | trains                                                    | FLOPs  | H100 hours |
|--------------------|-----------------------------------------------------------|--------|------------|
| :proxies (default) | 20 proxies: 5 active sizes, 4 expansions, factor 100 each | 1.2e22 | 8,120      |
| :held-out          | the proxies and one held-out run of 16B active parameters | 4.9e22 | 33,000     |
| :pilot             | DeepSeek-V3's shape (37B active of 671B) on 100B tokens   | 3.1e22 | 19,300     |
| :tiny              | a small version of :held-out, minutes on two cores        | 3.2e12 |            |

Data:     your own, with a tokenizer of at most 50,432 entries (129,280 for :pilot).
Recipe:   one trunk per model, with branches at 5, 10 and 20 tokens per active parameter. Tian's Eq. 5 gives the
          learning rate and batch size.
Cost:     see the table.
Expected: the law predicts the loss of the held-out run within 0.02 nats, and the loss of the pilot after 100B tokens.
          :tiny has losses below the unigram entropy and a fit that is tested on a held-out model.

The chapter prints no shapes. These settings are inferred: the width is 64 times the layers; heads have size 64; the
active feed-forward width is 4·d_model in four fine-grained experts; embeddings are tied; computation is in bfloat16,
as the hours assume.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from moejax.architecture import Architecture
from moejax.config import build, dump
from moejax.laws.accounting import params
from moejax.laws.catalogue import CATALOGUE

WIDTHS = (384, 768, 1024, 1536, 2560)
"""Active parameters from 34M to 4.3B with the vocabulary."""
EXPERTS = (0, 16, 96, 576)
"""Numbers of experts, four of which serve a token; 0 is dense."""
TOKENS_PER_PARAM = (5, 10, 20)


def get_config(part: str = "proxies") -> ConfigDict:
    """Return the study of one part of the protocol."""
    config = ConfigDict()
    config.name = f"chapter_002-{part}"
    config.seed = 0
    if part not in PARTS:
        raise ValueError(f"there is no {part!r}; there are {', '.join(PARTS)}")
    config.models = PARTS[part]()
    held = ["held-out-16B"] if part == "held-out" else []
    # A law needs several models: the pilot is compared with the proxies' law (--recipe launch-check --pilot).
    laws = [] if part == "pilot" else ["chinchilla", "effective_params"]
    config.analysis = dict(laws=laws, decision_flops=3.4e24, hold_out_models=held)
    config.recipe = recipe()
    config.recipes = {name: dict(budgets_tokens=budgets(shape)) for name, shape in PARTS[part]().items()}
    if part == "pilot":
        config.recipe = recipe(data=dict(source="", sequence_length=4096, validation_tokens=2**23))
        config.recipes = {"deepseek-v3": dict(budgets_tokens=[50_000_000_000, 100_000_000_000])}
    if part == "proxies":
        config.stated = [dict(quantity="models", value=20, source="'at least twenty proxy runs'")]
    if part == "tiny":
        small(config)
    return config


def model(width: int, experts: int, layers: int = 0, vocabulary: int = 50_432, head_dim: int = 64) -> dict[str, Any]:
    """Return the shape of a proxy with 4·d_model active hidden units, in one dense feed-forward or in four experts."""
    heads = width // head_dim
    shape = dict(
        vocab_size=vocabulary, model_dim=width, num_layers=layers or heads, num_heads=heads, num_kv_heads=heads
    )
    shape |= dict(head_dim=head_dim)
    if not experts:
        return shape | dict(dense_hidden=4 * width)
    return shape | dict(num_experts=experts, top_k=4, expert_hidden=width)


def budgets(shape: dict[str, Any]) -> list[int]:
    """Return the token budgets of the branches."""
    active = params(build(Architecture, shape)).active
    return [int(share * active) for share in TOKENS_PER_PARAM]


def proxies() -> dict[str, dict[str, Any]]:
    """Return the twenty proxies."""
    return {f"d{width}-E{experts}": model(width, experts) for width in WIDTHS for experts in EXPERTS}


def held_out() -> dict[str, dict[str, Any]]:
    """Return the proxies and a model with 16B active parameters and 14 times as many in total."""
    return proxies() | {"held-out-16B": model(4096, 72, layers=58)}


def pilot() -> dict[str, Any]:
    """Return DeepSeek-V3's shape, for a short run."""
    return {"deepseek-v3": dump(CATALOGUE["deepseek-v3.1"].architecture)}


def tiny() -> dict[str, dict[str, Any]]:
    """Return eight proxies and a larger model."""
    sizes = {f"d{w}-E{e}": model(w, e, 2, 257, 16) for w in (32, 48, 64, 80) for e in (0, 16)}
    return sizes | {"held-out": model(128, 16, 2, 257, 16)}


PARTS = {"proxies": proxies, "held-out": held_out, "pilot": pilot, "tiny": tiny}


def small(config: ConfigDict) -> None:
    """Apply the recipe of :tiny."""
    config.recipe = recipe(
        budgets_tokens=[131_072, 262_144],
        batch_tokens=2_048,
        runtime=dict(),
        data=dict(source="python_stdlib", sequence_length=128, validation_tokens=65_536),
        optimizer=dict(learning_rate=6e-3, warmup_tokens=32_768),
    )
    config.recipes = {}
    config.analysis = dict(laws=["chinchilla", "effective_params"], resamples=40, decision_flops=1e13) | dict(
        hold_out_models=["held-out"]
    )


def recipe(**changes) -> dict:
    """Return a recipe with rate and batch by compute, and a decay over the last fifth."""
    return (
        dict(
            budgets_tokens=[],
            batch_tokens=0,
            hyperparameters="tian-2025",
            data=dict(source="", sequence_length=2048, validation_tokens=2**23),
            optimizer=dict(learning_rate=0.0, warmup_tokens=2**24, decay_share=0.2, weight_decay=0.1),
            loss=dict(balance=0.01, router_z=0.001),
            runtime=dict(compute_dtype="bfloat16"),
            checkpoint_tokens=2**31,
        )
        | changes
    )
