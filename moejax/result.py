"""What an analysis or a command found, as data: titled tables of typed columns, warnings and notes.

Nothing here knows how it is shown: ``moejax.report.render`` writes a result to a terminal, as Markdown, HTML or JSON.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moejax.quantities import format

MISSING = "–"
"""What stands for a value that is not known."""
NOT_DETERMINED = "not determined"
"""What an answer is called whose interval says nothing."""
NOT_SET = "not set by the data"
"""What a coefficient is called that no run moves."""
OF_ANOTHER = "of another output"
"""What a coefficient is called on which what was fitted does not depend."""

Write = Callable[[Any], str] | str


@dataclass(frozen=True)
class Column:
    """A column of a table, and how its values are written for people."""

    name: str
    write: Write = ""
    """A function of a value, or a format such as ``.4f``."""
    unit: str = ""
    """Of the values; part of the heading."""
    words: bool = False
    """Whether it holds words, which are aligned to the left and may be wrapped."""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    def written(self, value: Any) -> str:
        """One of its values, for people; a text is written as it is."""
        if isinstance(value, Written):
            return value.text
        if value is None or value != value:
            return MISSING
        if isinstance(value, str):
            return value
        return self.write(value) if callable(self.write) else builtins.format(value, self.write)


@dataclass(frozen=True)
class Written:
    """A value in a column of mixed quantities, with the text that people are shown."""

    value: Any
    text: str


@dataclass(frozen=True)
class Table:
    """A table under a title, and the sentences below it; without columns these alone."""

    title: str
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Any]] = ()
    """Values in the order of the columns: numbers, texts, None where nothing is known."""
    notes: Sequence[str] = ()
    key: str = ""
    """Its name in a page's links; empty if it has none."""

    def cells(self) -> list[list[str]]:
        """The rows, written for people."""
        return [[c.written(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def shown(self) -> tuple[list[Column], list[list[str]]]:
        """Columns and written rows without columns in which nothing is known; the first names the rows and stays."""
        cells = self.cells()
        empty = ("", MISSING)
        kept = [i for i in range(len(self.columns)) if i == 0 or not cells or any(row[i] not in empty for row in cells)]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in cells]


@dataclass(frozen=True)
class Result:
    """Everything that is to be said, in reading order: title, warnings, tables, notes."""

    title: str = ""
    warnings: Sequence[str] = ()
    """Sentences on what not to trust, before all else."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    data: Any = None
    """What ``--json`` prints, under the names of the quantities; None if the tables are all there is."""


def percent(digits: int = 1) -> Callable[[float], str]:
    """Write shares as percentages."""
    return lambda value: f"{value:.{digits}%}"


def size(value: float | int, digits: int = 4) -> str:
    """A quantity with a letter from a thousand on, so that a column is written alike: ``26.82K`` above ``274.2K``."""
    return f"{value / 1000:.{digits}g}K" if 1000 <= value < 99_995 else format(value, digits)
