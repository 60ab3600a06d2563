"""What in a table of runs says that its models have experts, so that one size of theirs is not both counts."""

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
"""Columns that say of a model that it has experts, by a number above this."""

EXPERT_WORDS = frozenset({"expert", "experts", "moe", "router", "routed", "routing", "E"})
"""Words in the names of other columns that are about experts; the papers' letter only where it is the whole name."""
ACTIVE_WORDS = frozenset({"active", "activated", "act", "na", "nact", "nactive"})
"""Words in the names of other columns that count active parameters."""
NO_EXPERTS = frozenset({"", "0", "1", "none", "no", "false", "dense", "nan", "-"})
"""What a column about experts says, in lower case, of a dense model."""


@dataclass(frozen=True)
class ExpertSign:
    """Why one size of a table cannot be taken for both counts of its models' parameters."""

    reason: str
    active: str | None = None
    """The column that looks like active parameters, if there is one."""


def sign_of_experts(known: Mapping[str, Any], unread: Mapping[str, tuple[frozenset[str], Any]]) -> ExpertSign | None:
    """The first sign of experts; None if there is none.

    A dense model has 0 experts, or 1, whatever other columns say of it.

    Args:
      known: the columns of ``MORE_THAN_DENSE`` that are known, by our names.
      unread: the columns that nothing reads, with the words of their names.
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
    """A column's numbers; all of them ``if_text`` if there is text in it that is no number."""
    try:
        return run_table.numbers(values).to_numpy(np.float64)
    except ValueError:
        return np.full(len(values), if_text)
