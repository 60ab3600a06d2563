"""Represent results of analyses and commands as data: titled tables of typed columns, warnings and notes.

``moejax.report.render`` writes a result to a terminal, or as Markdown, HTML or JSON.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moejax.quantities import format

MISSING = "–"
"""Text of an unknown value."""
NOT_DETERMINED = "not determined"
"""Text of an answer with an uninformative interval."""
NOT_SET = "not set by the data"
"""Text of a coefficient that no run affects."""
OF_ANOTHER = "of another output"
"""Text of a coefficient that does not affect the fitted output."""

Write = Callable[[Any], str] | str


@dataclass(frozen=True)
class Column:
    """A column of a table, with the format of its values."""

    name: str
    write: Write = ""
    """A function of a value, or a format such as ``.4f``."""
    unit: str = ""
    """Unit of the values, part of the heading."""
    words: bool = False
    """True if the column holds words, which are left-aligned and may be wrapped."""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def written(self, value: Any) -> str:
        """Return a value of the column as text; a text is unchanged."""
        if isinstance(value, Written):
            return value.text
        if value is None or value != value:
            return MISSING
        if isinstance(value, str):
            return value
        return self.write(value) if callable(self.write) else builtins.format(value, self.write)


@dataclass(frozen=True)
class Written:
    """A value in a column of mixed quantities, with its displayed text."""

    value: Any
    text: str


@dataclass(frozen=True)
class Table:
    """A table with a title, and the sentences below it. Without columns it has only the sentences."""

    title: str
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Any]] = ()
    """Values in the order of the columns: numbers, texts, None if unknown."""
    notes: Sequence[str] = ()
    key: str = ""
    """Anchor in the links of a page; empty if none."""

    def cells(self) -> list[list[str]]:
        """Return the rows as text."""
        return [[c.written(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def shown(self) -> tuple[list[Column], list[list[str]]]:
        """Return the columns and the rows as text, without columns of unknown values. The first column names the rows
        and stays.
        """
        cells = self.cells()
        empty = ("", MISSING)
        kept = [i for i in range(len(self.columns)) if i == 0 or not cells or any(row[i] not in empty for row in cells)]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in cells]


@dataclass(frozen=True)
class Result:
    """A complete result in reading order: title, warnings, tables, notes."""

    title: str = ""
    warnings: Sequence[str] = ()
    """Sentences on results that are not reliable, printed first."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    data: Any = None
    """Output of ``--json``, by names of quantities; None to use the tables."""


def percent(digits: int = 1) -> Callable[[float], str]:
    """Return a function that formats shares as percentages."""
    return lambda value: f"{value:.{digits}%}"


def size(value: float | int, digits: int = 4) -> str:
    """Format a quantity with a suffix from 1,000 on, for a uniform column: ``26.82K`` above ``274.2K``."""
    return f"{value / 1000:.{digits}g}K" if 1000 <= value < 99_995 else format(value, digits)
