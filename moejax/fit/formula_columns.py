"""What the names in a formula are, by the table that it is fitted to: its columns, their meanings, or coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.column_names import Named, quoted, with_our_names
from moejax.laws.design import DERIVED, FIELDS
from moejax.laws.formula_law import LETTERS, FormulaLaw, formula_law
from moejax.laws.law import Sign
from moejax.wording import listed, nearest

MISSPELT, SLIP = 4, 0.8
"""A name of this many letters or more that has this share in common with a column is taken for a slip."""


def is_formula(text: str) -> bool:
    """Whether what names a law is a formula."""
    return "=" in text


def law_of_formula(
    text: str,
    frame: Any,
    *,
    mapping: Mapping[str, str] | None = None,
    loss: str = "loss",
    signs: Mapping[str, Sign] | None = None,
    budget: str = "",
) -> type[FormulaLaw]:
    """The law of a formula on a table's columns, whatever these are called there.

    Args:
      frame: the table as it is.
      mapping: our column by theirs or by arithmetic on theirs, as ``read_runs`` has it.
      loss: the column that holds the loss, where it is named.
      signs: of coefficients, where they are not as the formula suggests.
      budget: what two of the columns cost, as ``formula_law`` has it.

    Raises:
      UserError: as ``formula_law``, or a name could be several columns, or is nearly one.
    """
    mapping = dict(mapping or {})
    ours = with_our_names(frame, mapping)
    columns = _columns(ours, mapping, loss)
    law = formula_law(text, signs=signs, known=columns, budget=budget)
    if len(law.outputs) > 1:
        raise UserError(f"The formula {text!r} has several targets, {listed(law.outputs)}; fit one at a time.")
    for name, _ in law.formula.signs:
        if len(name) >= MISSPELT and (near := nearest(name, columns, SLIP)):
            raise UserError(
                f"The formula {text!r} has {name}, which is no column; did you mean {listed(near[:2], 'or')}? If it is "
                f"a coefficient, give it another name."
            )
    read = {name for name, _ in law.formula.columns}
    if "N" in read and "N" not in ours.frame.columns and _differ(ours.frame):
        raise UserError(
            f"N in the formula {text!r} could be params_active or params_total, which differ in this table; write one."
        )
    return law


def _columns(ours: Named, mapping: Mapping[str, str], loss: str) -> dict[str, str]:
    """What every name that is of the table is called in a Design; the loss, under whichever name, is ``loss``."""
    found = [*map(str, ours.frame.columns), *mapping]
    columns = {name: name for name in found if name not in DERIVED}
    columns |= {name: name for name, fields in DERIVED.items() if set(fields) <= set(found)}
    read_from = {**ours.read_from, **mapping}
    # A dense table's one size is params_active and params_total; the laws of dense models read the first.
    for field in sorted(FIELDS, key=lambda name: name != "params_active"):
        theirs = read_from.get(field, "")
        for name in found:
            same = mapping.get(name, name)
            if theirs in (same, quoted(same)) and columns.get(name) == name and name not in FIELDS:
                columns[name] = field
    columns |= {name: "loss" for name in found if name in (loss, read_from.get("loss"))}
    letters = {letter: field for letter, field in LETTERS.items() if field in (*found, "loss")}
    if "params_active" not in found and "params_total" in found:
        letters["N"] = "params_total"
    return letters | columns


def _differ(frame: Any) -> bool:
    if not {"params_active", "params_total"} <= set(frame.columns):
        return False
    return not np.array_equal(frame["params_active"].to_numpy(), frame["params_total"].to_numpy())
