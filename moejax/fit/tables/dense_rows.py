"""Fill empty cells of dense models: expert counts, and total parameters that equal the active ones.

A pandas join of mixtures and dense models leaves the expert columns of dense models empty. If these counted as unknown,
the fit would lose its baseline.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from moejax import run_table
from moejax.fit.expert_signs import MORE_THAN_DENSE, NO_EXPERTS
from moejax.wording import listed

EXPERTS = ("num_experts", "top_k", "num_shared_experts")
EMPTY = NO_EXPERTS - {"0", "1", "false"} | {"–", "—", "n/a"}
"""Texts in expert columns that mean "no experts", in lower case."""
EQUAL = 1.005
"""Tolerance for equal counts, because papers print a few digits."""


def with_dense_rows(frame: Any, named_rows: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the table with the empty cells of dense models filled, and a message about them.

    A row is dense if it has 0 or 1 experts. It is also dense if all its expert counts are empty and its total is empty
    or equal to its active parameters. In that case another row must have experts, or the row's total must be known.

    Args:
      named_rows: function that describes rows of a table, given the table and the rows' index.
    """
    columns = {}
    for name in (*EXPERTS, "params_active", "params_total"):
        if name in frame.columns:
            cells = frame[name].map(lambda cell: np.nan if str(cell).strip().lower() in EMPTY else cell)
            try:
                columns[name] = run_table.numbers(cells).to_numpy(np.float64)
            except ValueError:
                # The table checks report non-numeric cells.
                return frame, ()
    experts = {name: values for name, values in columns.items() if name in EXPERTS}
    if not experts:
        return frame, ()
    unsaid = np.full(len(frame), np.nan)
    active, total = columns.get("params_active", unsaid), columns.get("params_total", unsaid)
    silent = np.all([np.isnan(values) for values in experts.values()], axis=0)
    some_have = any((values > MORE_THAN_DENSE[name]).any() for name, values in experts.items())
    equal = total <= EQUAL * active
    counted = columns.get("num_experts", unsaid)
    dense = ((counted >= 0) & (counted <= 1)) | (silent & (equal | (np.isnan(total) & some_have)))
    fill = {name: (values, np.zeros(len(frame))) for name, values in experts.items()}
    if "params_total" in columns:
        fill["params_total"] = (total, active)
    filled, names, rows = {}, [], np.zeros(len(frame), bool)
    for name, (values, of_dense) in fill.items():
        empty = dense & np.isnan(values) & ~np.isnan(of_dense)
        if empty.any():
            filled[name] = np.where(empty, of_dense, values)
            names.append(name)
            rows |= empty
    if not names:
        return frame, ()
    return frame.assign(**filled), (
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} empty in {int(rows.sum())} of {len(frame)} rows "
        f"({named_rows(frame, frame.index[rows])}), which are read as dense: 0 experts, and all parameters active.",
    )
