"""Hold the state of a run table while ``read_runs`` reads it, and group the table's rows.

Rows of one training run share noise and are resampled together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from moejax import run_table
from moejax.fit.runs import Runs, gives_a_size
from moejax.laws.design import FIELDS, Design
from moejax.run_table import DataFrame
from moejax.wording import argument, shown, some

Rows = Bool[np.ndarray, " rows"]
"""Boolean mask of a table's rows."""

NAMES = ("model", "name", "run")
"""Columns whose cells are names of rows, in order of preference."""
SHOWN = 5
"""Maximum number of rows that a sentence lists."""


@dataclass(frozen=True)
class TextCells:
    """Cells of a numeric column that are not numbers."""

    rows: Rows
    example: str
    """Text with the first such cell and the rows of all such cells."""


@dataclass(kw_only=True)
class RunTable:
    """A table with moejax's column names, and its use by a law."""

    frame: DataFrame
    named: str = "The table"
    """Name of the table in messages."""
    law: Any = ()
    """Law to be fitted, or the names of the required columns."""
    loss: str = "loss"
    """Fitted column."""
    output: str = "loss"
    """Output of the law that the fitted column holds."""
    weight: str | None = None
    group: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    """Expressions of ``--map`` by column."""
    read_from: Mapping[str, str] = field(default_factory=dict)
    """Expressions on the file's columns for columns under other names."""
    texts: Mapping[str, TextCells] = field(default_factory=dict)
    compared: Sequence[str] = ()
    """Additional columns that distinguish runs; unlike columns that the law reads, they may have empty cells."""
    inputs: Sequence[str] = ()
    """Columns that determine a run's prediction."""
    sizes: Sequence[str] = ()
    """Columns that distinguish runs."""
    is_tuned: bool = False
    """True if the rows are already optima of sweeps."""
    tried_settings: pd.Series | None = None
    """Number of settings in the sweep of every row; None if the rows are not optima of sweeps."""
    notes: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Notes on rows that were left out."""

    @property
    def law_inputs(self) -> tuple[str, ...]:
        return self.law if isinstance(self.law, tuple) else tuple(self.law.inputs)

    @property
    def needed(self) -> list[str]:
        """Columns that must hold a number in every row."""
        return list(dict.fromkeys((*self.law_inputs, self.loss, *([self.weight] if self.weight else []))))

    @property
    def source(self) -> dict[str, str]:
        """Expression on the file's columns for each column that is not read under its own name."""
        return {**self.read_from, **self.mapping}

    def has(self, *columns: str) -> bool:
        return set(columns) <= set(self.frame.columns)

    def values(self, column: str) -> Float[np.ndarray, " rows"]:
        return self.frame[column].to_numpy(np.float64)

    def keep(self, rows: Rows) -> None:
        """Keep only the rows of a mask."""
        self.frame = self.frame[np.asarray(rows)]

    def called(self, rows: Rows) -> str:
        """Return a list of row numbers as text, with the runs' names if a column has them."""
        column = naming_column(self.frame)
        index = self.frame.index[np.asarray(rows)]
        names = "" if column is None else f": {some([str(cell) for cell in self.frame.loc[index, column]], most=3)}"
        return f"{rows_in_words(index)}{names}"

    def parse_numbers(self, columns: Iterable[str]) -> None:
        """Convert columns to numbers, and record the cells that are not numbers."""
        texts = {}
        for name in columns:
            cells = self.frame[name]
            try:
                numbers = run_table.numbers(cells)
            except ValueError:
                wrong = np.array([not _is_number(cell) for cell in cells])
                numbers = run_table.numbers(cells.where(~wrong))
                example = f"{shown(cells[wrong].iloc[0])} in {rows_in_words(self.frame.index[wrong])}"
                texts[name] = TextCells(wrong, example)
            self.frame = self.frame.assign(**{name: numbers})
        self.texts = texts


def is_field(name: str) -> bool:
    """Return whether a column is a known column or a field of a design."""
    return name in run_table.COLUMNS or name in FIELDS


def naming_column(frame: DataFrame) -> str | None:
    """Return the column whose cells are names of rows; None if there is none."""
    return next((column for column in NAMES if column in frame.columns), None)


def rows_in_words(rows: Iterable[int]) -> str:
    """Return row numbers as text. Rows are counted from 1 below the header of the file."""
    numbers = [str(row + 1) for row in rows]
    return f"row{'s' * (len(numbers) > 1)} {', '.join(numbers[:SHOWN])}" + (", …" if len(numbers) > SHOWN else "")


def _is_number(cell: Any) -> bool:
    try:
        run_table.numbers(pd.Series([cell]))
    except ValueError:
        return False
    return True


TRAININGS = ("run", "run_name", "run_id", "run_uuid")
"""Columns with names of training runs; ``model`` and ``name`` may be names of groups of runs."""


def group_labels(table: RunTable, design: Design) -> list[Any] | None:
    """Return each row's group label from a column; None to group rows by their sizes. Notes are added to the table.

    The column is ``table.group``, or else ``group``. If the runs have no size, it may be a column with names of runs.
    """
    frame = table.frame
    if table.group is None and table.has("group"):
        if len(frame) > 1 and frame["group"].nunique(dropna=False) == 1:
            table.notes.append("Column group is the same in all rows, so rows with equal sizes form the groups.")
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
            f"{argument('group', column)}."
        ]
    split = table.frame.assign(_group=runs.group).groupby(column, sort=False)["_group"].nunique()
    if not (split > 1).any():
        return []
    return [
        f"{int((split > 1).sum())} of {len(split)} names in the column {column} have rows in several groups, which "
        f"count as independent. If the rows of a name are one training run, pass {argument('group', column)}."
    ]
