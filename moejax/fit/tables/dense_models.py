"""Distinguish dense models from MoE models in a table, and fill the empty cells of dense models.

A pandas join of MoE and dense models leaves the expert columns of dense models empty. If these cells counted as
unknown, the fit would lose its dense baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax import run_table
from moejax.fit.tables.table import RunTable
from moejax.run_table import Series
from moejax.wording import listed

MORE_THAN_DENSE = {
    "num_experts": 1,
    "expansion": 1,
    "granularity": 1,
    **dict.fromkeys(("top_k", "num_shared_experts", "active_experts", "sparsity", "shared_share"), 0),
}
"""Columns that indicate experts, each with the value above which they do."""
EXPERTS = ("num_experts", "top_k", "num_shared_experts")
"""Columns that are 0 for a dense model."""
EXPERT_WORDS = frozenset({"expert", "experts", "moe", "router", "routed", "routing", "E"})
"""Words in a column's name that suggest experts; the letter E of the papers counts only as the whole name."""
ACTIVE_WORDS = frozenset({"active", "activated", "act", "na", "nact", "nactive"})
"""Words in a column's name that suggest active parameters."""
NO_EXPERTS = frozenset({"", "0", "1", "none", "no", "false", "dense", "nan", "-"})
"""Values, in lower case, that mean a dense model in a column about experts."""
EMPTY = NO_EXPERTS - {"0", "1", "false"} | {"–", "—", "n/a"}
"""Texts, in lower case, that mean "no experts" in expert columns."""
EQUAL = 1.005
"""Tolerance for equal counts, because papers print few digits."""


@dataclass(frozen=True)
class ExpertSign:
    """Evidence that a table's models have experts. A single size column then cannot give both total and active
    parameters."""

    reason: str
    active: str | None = None
    """Column that looks like active parameters, if any."""


def sign_of_experts(known: Mapping[str, Any], unread: Mapping[str, tuple[frozenset[str], Any]]) -> ExpertSign | None:
    """Return the first sign of experts; None if there is none.

    A model with 0 or 1 experts is dense, regardless of other columns.

    Args:
      known: the available columns of ``MORE_THAN_DENSE``, keyed by moejax's names.
      unread: the words in the name, and the cells, of each column that is not read.
    """
    dense = np.zeros(1, bool)
    if (experts := known.get("num_experts")) is not None:
        dense = _numbers(experts, if_text=np.inf) <= MORE_THAN_DENSE["num_experts"]
    if dense.all():
        return None
    active = next((column for column, (words, cells) in unread.items() if _looks_active(words, cells)), None)
    for name, column in known.items():
        if ((_numbers(column, if_text=np.inf) > MORE_THAN_DENSE[name]) & ~dense).any():
            return ExpertSign(f"the models have experts (column {name})", active)
    if active is not None:
        return ExpertSign(f"the column {active} looks like active parameters", active)
    for column, (words, cells) in unread.items():
        if words & EXPERT_WORDS and not {str(cell).lower().removesuffix(".0") for cell in cells} <= NO_EXPERTS:
            return ExpertSign(f"the column {column} suggests that the models have experts")
    return None


def _looks_active(words: frozenset[str], cells: Series) -> bool:
    named = words & ACTIVE_WORDS and not words & EXPERT_WORDS
    return bool(named) and bool((_numbers(cells, if_text=np.nan) > 1).any())


def _numbers(cells: Series, *, if_text: float) -> Float[np.ndarray, " rows"]:
    """Return a column's numbers, or ``if_text`` for all rows if the column has non-numeric text."""
    try:
        return run_table.numbers(cells).to_numpy(np.float64)
    except ValueError:
        return np.full(len(cells), if_text)


def fill_dense_rows(table: RunTable) -> None:
    """Fill the empty cells of dense models, with 0 experts and total = active parameters, and add a note.

    A row is dense if it has 0 or 1 experts. A row with empty expert counts is dense if its total equals its active
    parameters, or if its total is empty and another row has experts.
    """
    frame = table.frame
    columns = {}
    for name in (*EXPERTS, "params_active", "params_total"):
        if name in frame.columns:
            cells = frame[name].map(lambda cell: np.nan if str(cell).strip().lower() in EMPTY else cell)
            try:
                columns[name] = run_table.numbers(cells).to_numpy(np.float64)
            except ValueError:
                # The row checks report text later.
                return
    experts = {name: column for name, column in columns.items() if name in EXPERTS}
    if not experts:
        return
    unknown = np.full(len(frame), np.nan)
    active, total = columns.get("params_active", unknown), columns.get("params_total", unknown)
    count = columns.get("num_experts", unknown)
    no_count = np.all([np.isnan(column) for column in experts.values()], axis=0)
    any_mixture = any((column > MORE_THAN_DENSE[name]).any() for name, column in experts.items())
    equal = total <= EQUAL * active
    dense = ((count >= 0) & (count <= 1)) | (no_count & (equal | (np.isnan(total) & any_mixture)))
    values = {name: (column, np.zeros(len(frame))) for name, column in experts.items()}
    if "params_total" in columns:
        values["params_total"] = (total, active)
    filled, rows = {}, np.zeros(len(frame), bool)
    for name, (column, of_dense) in values.items():
        empty = dense & np.isnan(column) & ~np.isnan(of_dense)
        if empty.any():
            filled[name] = np.where(empty, of_dense, column)
            rows |= empty
    if filled:
        table.notes.append(
            f"{listed(filled)} {'is' if len(filled) == 1 else 'are'} empty in {int(rows.sum())} of {len(frame)} rows "
            f"({table.called(rows)}). These are read as dense models: 0 experts, and all parameters are active."
        )
        # Conditions may name the table's own column instead of moejax's.
        sources = ((table.mapping.get(name, table.read_from.get(name)), column) for name, column in filled.items())
        own = {source: column for source, column in sources if source in frame.columns and source is not None}
        table.frame = frame.assign(**filled, **own)
