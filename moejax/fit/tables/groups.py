"""Group the rows of a table: rows of one training run share noise, and are resampled together."""

from __future__ import annotations

from typing import Any

import numpy as np

from moejax.fit.runs import Runs, gives_a_size
from moejax.fit.tables.table import NAMES, RunTable, rows_in_words
from moejax.laws.design import Design
from moejax.wording import command

TRAININGS = ("run", "run_name", "run_id", "run_uuid")
"""Columns that name a training run; ``model`` and ``name`` may name a group of them."""


def group_labels(table: RunTable, design: Design) -> list[Any] | None:
    """Return a label of each row's group by a column; None to group rows by their sizes. Notes are added to the table.

    The column is the given one, else ``group``, else for runs without a size a column that names them.
    """
    frame = table.frame
    if table.group is None and table.has("group"):
        if len(frame) > 1 and frame["group"].nunique(dropna=False) == 1:
            table.notes.append("Column group is the same in all rows, so rows that share their sizes form the groups.")
        else:
            table.group = "group"
    if table.group is None and not gives_a_size(design):
        names = (name for name in (*TRAININGS, *NAMES) if table.has(name) and frame[name].nunique() > 1)
        table.group = next(names, None)
    if table.group is None:
        return None
    cells = frame[table.group]
    empty = (cells.isna() | (cells.astype(str).str.strip() == "")).to_numpy()
    if empty.any():
        table.notes.append(
            f"Column {table.group} is empty in {int(empty.sum())} of {len(frame)} rows "
            f"({rows_in_words(frame.index[empty])}); each of them is a group of its own."
        )
    return [(row,) if empty[row] else label for row, label in enumerate(cells)]


def training_notes(table: RunTable, runs: Runs) -> list[str]:
    """Return a note if rows of one training run are in several groups, or rows of several runs are in one group."""
    column = next((name for name in TRAININGS if table.has(name)), None)
    if column is None:
        return []
    names, groups = table.frame[column].nunique(), len(np.unique(runs.group))
    if names == len(table.frame) > groups:
        return [
            f"Rows that differ only in tokens form one group ({groups} groups), like checkpoints of one training run, "
            f"but the column {column} names each row differently. If the rows are separate training runs, pass "
            f"{command('--group', column)}."
        ]
    split = table.frame.assign(_group=runs.group).groupby(column, sort=False)["_group"].nunique()
    if not (split > 1).any():
        return []
    return [
        f"{int((split > 1).sum())} of {len(split)} names in the column {column} have rows in several groups, which "
        f"count as independent. If the rows of a name are one training run, pass {command('--group', column)}."
    ]
