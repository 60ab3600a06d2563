"""Find signs in a run table that its models have experts, so that total and active parameters differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax import run_table

MORE_THAN_DENSE = {
    "num_experts": 1,
    "expansion": 1,
    "granularity": 1,
    **dict.fromkeys(("top_k", "num_shared_experts", "active_experts", "sparsity", "shared_share"), 0),
}
"""Columns that indicate experts if their value is above this threshold."""

EXPERT_WORDS = frozenset({"expert", "experts", "moe", "router", "routed", "routing", "E"})
"""Words in names of other columns about experts; the papers' letter E only as the whole name."""
ACTIVE_WORDS = frozenset({"active", "activated", "act", "na", "nact", "nactive"})
"""Words in names of other columns that count active parameters."""
NO_EXPERTS = frozenset({"", "0", "1", "none", "no", "false", "dense", "nan", "-"})
"""Values of a column about experts, in lower case, for a dense model."""


@dataclass(frozen=True)
class ExpertSign:
    """Evidence that a table's only size cannot be both total and active parameters."""

    reason: str
    active: str | None = None
    """Column that looks like active parameters, if any."""


def sign_of_experts(known: Mapping[str, Any], unread: Mapping[str, tuple[frozenset[str], Any]]) -> ExpertSign | None:
    """Return the first sign of experts; None if there is none.

    A model with 0 or 1 experts is dense, regardless of other columns.

    Args:
      known: the available columns of ``MORE_THAN_DENSE``, by our names.
      unread: the columns that are not read, with the words of their names.
    """
    dense = np.zeros(1, bool)
    if (experts := known.get("num_experts")) is not None:
        dense = _numbers(experts, if_text=np.inf) <= MORE_THAN_DENSE["num_experts"]
    if dense.all():
        return None
    active = next((column for column, (words, values) in unread.items() if _looks_active(words, values)), None)
    for name, column in known.items():
        if ((_numbers(column, if_text=np.inf) > MORE_THAN_DENSE[name]) & ~dense).any():
            return ExpertSign(f"the models have experts (column {name})", active)
    if active is not None:
        return ExpertSign(f"the column {active} looks like active parameters", active)
    for column, (words, values) in unread.items():
        if words & EXPERT_WORDS and not {str(value).lower().removesuffix(".0") for value in values} <= NO_EXPERTS:
            return ExpertSign(f"the column {column} looks as if models have experts")
    return None


def _looks_active(words: frozenset[str], values: Any) -> bool:
    named = words & ACTIVE_WORDS and not words & EXPERT_WORDS
    return bool(named) and bool((_numbers(values, if_text=np.nan) > 1).any())


def _numbers(values: Any, *, if_text: float) -> Float[np.ndarray, " rows"]:
    """Return a column's numbers, or ``if_text`` in every row if the column has non-numeric text."""
    try:
        return run_table.numbers(values).to_numpy(np.float64)
    except ValueError:
        return np.full(len(values), if_text)
