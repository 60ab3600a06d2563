"""Define a run table while ``read_runs`` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from moejax import run_table
from moejax.laws.design import FIELDS
from moejax.run_table import DataFrame
from moejax.wording import shown, some

Rows = Bool[np.ndarray, " rows"]
"""Mask of rows."""

NAMES = ("model", "name", "run")
"""Columns whose cells name rows, in order of preference."""
SHOWN = 5
"""Maximum number of rows that a sentence lists."""


@dataclass(frozen=True)
class TextCells:
    """Cells of a numeric column that are not numbers."""

    rows: Rows
    example: str
    """Phrase with the first such cell and its row."""


@dataclass(kw_only=True)
class RunTable:
    """A table with our column names, and its use by a law."""

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
    """Further columns that distinguish runs; unlike those that the law reads, they may be empty."""
    inputs: Sequence[str] = ()
    """Columns that determine a run's prediction."""
    sizes: Sequence[str] = ()
    """Columns that distinguish runs."""
    is_tuned: bool = False
    """True if the rows are already optima of sweeps."""
    notes: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    """Notes on the rows that were left out."""

    @property
    def law_inputs(self) -> tuple[str, ...]:
        return self.law if isinstance(self.law, tuple) else tuple(self.law.inputs)

    @property
    def needed(self) -> list[str]:
        """Columns that must hold a number in every row."""
        return list(dict.fromkeys((*self.law_inputs, self.loss, *([self.weight] if self.weight else []))))

    @property
    def source(self) -> dict[str, str]:
        """Expression of the file for each column that is not read under its own name."""
        return {**self.read_from, **self.mapping}

    def has(self, *columns: str) -> bool:
        return set(columns) <= set(self.frame.columns)

    def values(self, column: str) -> Float[np.ndarray, " rows"]:
        return self.frame[column].to_numpy(np.float64)

    def keep(self, rows: Any) -> None:
        """Keep only the rows of a mask."""
        self.frame = self.frame[np.asarray(rows)]

    def called(self, rows: Any) -> str:
        """Return rows by number, with the names of their runs if a column has them."""
        column = naming_column(self.frame)
        index = self.frame.index[np.asarray(rows)]
        names = "" if column is None else f": {some([str(cell) for cell in self.frame.loc[index, column]], most=3)}"
        return f"{rows_in_words(index)}{names}"

    def parse_numbers(self, columns: Iterable[str]) -> None:
        """Convert columns to numbers, and record the cells that are none."""
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
    """Return the column whose cells name rows, if there is one."""
    return next((column for column in NAMES if column in frame.columns), None)


def rows_in_words(rows: Iterable[int]) -> str:
    """Return rows by their number in the file, counted from 1 below the header."""
    numbers = [str(row + 1) for row in rows]
    return f"row{'s' * (len(numbers) > 1)} {', '.join(numbers[:SHOWN])}" + (", …" if len(numbers) > SHOWN else "")


def _is_number(cell: Any) -> bool:
    try:
        run_table.numbers(pd.Series([cell]))
    except ValueError:
        return False
    return True
