"""Read the stored architecture and recipe of every row of moejax's run tables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.architecture import Architecture
from moejax.config import build
from moejax.laws.accounting import flops_per_token
from moejax.laws.conventions import FLOPS, grouped_square
from moejax.run_table import DataFrame
from moejax.stored import parse_line


def flops_by(convention: str, table: DataFrame) -> Float[np.ndarray, " runs"] | None:
    """Return the training FLOPs of every run by a paper's convention.

    Return None if the table lacks stored architectures, ``tokens`` or ``sequence_length``.
    """
    if not {"tokens", "sequence_length"} <= {*table}:
        return None
    models = _architectures(table)
    if models is None:
        return None
    lengths, tokens = (table[name].to_numpy(np.float64) for name in ("sequence_length", "tokens"))
    per_token = [FLOPS[convention].per_token(*one) for one in zip(models, lengths, strict=True)]
    return np.asarray(per_token, np.float64) * tokens


def with_structure(table: DataFrame) -> DataFrame:
    """Return the table with missing columns of ``STRUCTURE`` added, from stored architectures and recipes.

    ``balance_weight`` is the weight of the balance loss.
    """
    missing = [name for name in STRUCTURE if name not in table]
    models = _architectures(table) if missing else None
    if models is not None:
        lengths = table["sequence_length"] if "sequence_length" in table else np.full(len(table), np.nan)
        known = list(zip(models, map(float, lengths), strict=True))
        table = table.assign(**{name: [float(STRUCTURE[name](*one)) for one in known] for name in missing})
    if "balance_weight" not in table and "config" in table:
        recipes = [_recipe(text) for text in table["config"]]
        if all(recipe is not None for recipe in recipes):
            table = table.assign(balance_weight=[_at(recipe, "loss", "balance") for recipe in recipes])
    return table


def attention_share(architecture: Architecture, sequence_length: float) -> float:
    """Return attention's share of the FLOPs per token without logits, as in Tian et al. (2025), Appendix I."""
    f = flops_per_token(grouped_square(architecture), sequence_length)
    attention = f.attention_projections + f.attention_scores
    return float(attention / (f.forward - f.router - f.unembedding))


STRUCTURE: dict[str, Callable[[Architecture, float], Any]] = {
    "num_heads": lambda a, _: a.num_heads,
    "num_dense_layers": lambda a, _: a.num_dense_layers,
    "attention_share": attention_share,
}
"""Columns computed from an architecture and a sequence length."""


def _architectures(table: DataFrame) -> list[Any] | None:
    """Return the architecture of every row; None if this version cannot read some row's architecture."""
    if "architecture" not in table:
        return None
    models = [stored_architecture(text) for text in table["architecture"]]
    return None if any(model is None for model in models) else models


@functools.lru_cache(maxsize=4096)
def stored_architecture(text: Any) -> Architecture | None:
    """Return the architecture stored as JSON in a row; None if this version cannot read it."""
    plain = parse_line(text.encode(), dict) if isinstance(text, str) else None
    try:
        return None if plain is None else build(Architecture, plain, "architecture")
    except ValueError:
        return None


def _recipe(text: Any) -> Any:
    plain = parse_line(text.encode(), dict) if isinstance(text, str) else None
    return None if plain is None else plain.get("recipe")


def _at(plain: Any, *keys: str) -> float:
    for key in keys:
        plain = plain.get(key) if isinstance(plain, dict) else None
    return float("nan") if plain is None else float(plain)
