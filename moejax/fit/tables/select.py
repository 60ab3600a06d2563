"""Compute the columns of ``--map`` and select the rows of ``--where``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moejax.errors import UserError
from moejax.fit.tables.expression import condition, evaluate
from moejax.run_table import DataFrame
from moejax.wording import nearest, told


def mapped(frame: DataFrame, mapping: Mapping[str, str], named: str) -> DataFrame:
    """Return the table with columns added, from its columns or arithmetic on them.

    Raises:
      UserError: a column cannot be computed.
    """
    computed = {}
    for name, expression in mapping.items():
        if expression in frame.columns:
            computed[name] = frame[expression]
            continue
        try:
            computed[name] = evaluate(expression, frame)
        except ValueError as error:
            near = nearest(expression, map(str, frame.columns))
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UserError(
                f"{named}: {name}={expression} cannot be computed: {told(error).rstrip('.')}.{hint}"
            ) from error
    return frame.assign(**computed)


def select(frame: DataFrame, where: Sequence[str], named: str) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the rows that meet all conditions, and notes with their number.

    Raises:
      UserError: a condition cannot be applied, or no row meets it.
    """
    notes = []
    for text in where:
        before = len(frame)
        try:
            frame = frame[condition(text, frame)]
        except ValueError as error:
            raise UserError(f"{named}: the condition {text!r} cannot be applied: {told(error).rstrip('.')}.") from error
        notes.append(f"{len(frame)} of {before} rows meet {text!r}.")
        if not len(frame):
            raise UserError(f"{named}: no row meets {text!r}.")
    return frame.copy(), tuple(notes)
