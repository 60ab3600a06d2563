"""Represent results of analyses and commands as data: titled tables of typed columns, warnings and notes.

``moejax.report.render`` writes a result to a terminal, or as Markdown, HTML, LaTeX or JSON. A table is declared once,
with the fields of a dataclass, or with columns that read their values from any object::

    @dataclass(frozen=True)
    class Error:
        law: str = column("law")
        mae: float = column("MAE", ".4f", unit="nats/token")

    Table.of("Errors", Error, [Error("chinchilla", 0.0123)])
    Table.of("Laws", [Column("law", value="name"), Column("R²", ".3f", value="fit.metrics.r_squared")], laws)
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moejax.quantities import format

if TYPE_CHECKING:
    from pandas import DataFrame

MISSING = "–"
"""Text of an unknown value."""
NOT_DETERMINED = "not determined"
"""Text of an answer with an uninformative interval."""
NOT_SET = "not set by the data"
"""Text of a coefficient that does not affect the prediction of any run."""
OF_ANOTHER = "of another output"
"""Text of a coefficient that does not affect the fitted output."""
LOW_HIGH = ("low", "high")
"""Keys of the bounds of an interval, in the DataFrame of a table with one interval per row."""

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
    symbol: bool = False
    """True if the column holds letters of a formula, such as ``alpha_N``, which LaTeX sets as mathematics."""
    keys: tuple[str, ...] = ()
    """Names of the column in DataFrames and JSON, by default its name and unit; several names if its values are
    ``Written`` tuples, such as ``LOW_HIGH`` for an interval.
    """
    value: Callable[[Any], Any] | str = ""
    """Path of an attribute of a row's object, such as ``fit.metrics.mae``; a key if the row is a mapping; or a function
    of the object. See ``Table.of``.
    """

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

    def of(self, row: Any) -> Any:
        """Return the value of a row's object; None if the key or part of the attribute path is missing."""
        if callable(self.value):
            return self.value(row)
        if isinstance(row, Mapping):
            return row.get(self.value or self.name)
        for name in self.value.split("."):
            row = None if row is None else getattr(row, name)
        return row


def column(
    name: str, write: Write = "", *, unit: str = "", words: bool = False, default: Any = dataclasses.MISSING
) -> Any:
    """Return a dataclass field that is a column of a table."""
    return dataclasses.field(default=default, metadata={"column": Column(name, write, unit, words)})


def columns_of(row: type) -> list[Column]:
    """Return the columns that a dataclass declares with ``column``, in the order of its fields."""
    declared = [(field.name, field.metadata.get("column")) for field in dataclasses.fields(row)]
    return [dataclasses.replace(one, value=name) for name, one in declared if one is not None]


@dataclass(frozen=True)
class Written:
    """A value with its displayed text, such as a number in a column of mixed quantities."""

    value: Any
    """A number, or a tuple with a value per key of the column; None if unknown."""
    text: str


BLANK = Written(None, "")
"""An empty cell."""


@dataclass(frozen=True)
class Table:
    """A table with a title and notes below it. Without columns it has only the notes."""

    title: str
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Any]] = ()
    """Values in the order of the columns: numbers, texts, None if unknown."""
    notes: Sequence[str] = ()
    key: str = ""
    """Anchor for links to the table in a page; empty if none."""

    @classmethod
    def of(
        cls, title: str, columns: type | Iterable[Column], rows: Iterable[Any], notes: Sequence[str] = (), key: str = ""
    ) -> Table:
        """Return a table with a row per object.

        Args:
          columns: the dataclass of the rows, with fields made by ``column``, or columns with a ``value``.
        """
        shown = columns_of(columns) if isinstance(columns, type) else list(columns)
        return cls(title, shown, [[one.of(row) for one in shown] for row in rows], notes, key)

    def cells(self) -> list[list[str]]:
        """Return the rows as text."""
        return [[c.written(value) for c, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def shown(self) -> tuple[list[Column], list[list[str]]]:
        """Return the columns and the rows as text, without columns whose values are all unknown. The first column names
        the rows and is always included.
        """
        cells = self.cells()
        empty = ("", MISSING)
        kept = [i for i in range(len(self.columns)) if i == 0 or not cells or any(row[i] not in empty for row in cells)]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in cells]


class Shown:
    """An answer that notebooks display, and that can be converted to a DataFrame or LaTeX through its ``summary()``."""

    def summary(self) -> Result:
        """Return the answer as titled tables, warnings and notes, which ``moejax.show`` prints."""
        raise NotImplementedError

    def glance(self) -> Result:
        """Return the tables of ``repr``, which contains only stored numbers: by default the summary."""
        return self.summary()

    def to_frame(self, table: str | None = None) -> DataFrame:
        """Return the main table of ``summary()``, or the table with the title ``table``, as a DataFrame. Column names
        contain units. An interval has the columns ``low`` and ``high``; unknown numbers are NaN.

        Raises:
          UserError: no table has this title.
        """
        return imported("report.render").frame(self.summary(), table)

    def to_latex(self) -> str:
        """Return the main table of ``summary()`` as a LaTeX tabular for booktabs; of a fit, also its decisions."""
        return imported("report.render").latex(self.summary())

    def __repr__(self) -> str:
        return imported("report.render").brief(self)

    def _repr_html_(self) -> str:
        return imported("report.render").html(self.summary())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        # IPython takes the text from here instead of the dataclass's repr, and the HTML from _repr_html_.
        return {"text/plain": imported("report.render").text(self.summary())}


class Plotted(Shown):
    """An answer that has a figure."""

    def plot(self, runs: object = None) -> Any:
        """Draw the answer's figure with ``moejax.plot``. Give the ``runs`` if the figure shows runs.

        Raises:
          UserError: the figure shows runs, and none are given.
        """
        return imported("api.plot").figure_of(self, runs)


def imported(module: str) -> Any:
    """Import a module that itself imports the caller's module, such as the module that renders summaries."""
    return importlib.import_module(f"moejax.{module}")


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """A complete result in reading order: title, lead, warnings, tables, notes."""

    title: str = ""
    warnings: Sequence[str] = ()
    """Sentences on results that are not reliable."""
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    lead: Sequence[str] = ()
    """Sentences that answer the question, printed below the title."""
    main: int | str = 0
    """The main table: its title, or its index among the tables with columns."""
    for_latex: Sequence[Table] = ()
    """The tables that LaTeX shows, with their notes; empty for the main table without notes."""
    data: Any = None
    """Output of ``--json``: a mapping, or a dataclass (``moejax.json_text.finite``); None to use the tables."""

    def summary(self) -> Result:
        """Return the result itself."""
        return self


def percent(digits: int = 1) -> Callable[[float], str]:
    """Return a function that formats shares as percentages."""
    return lambda value: f"{value:.{digits}%}"


def size(value: float | int, digits: int = 4) -> str:
    """Format a quantity with a suffix if it is at least 1,000, for a uniform column: ``26.82K`` above ``274.2K``."""
    return f"{value / 1000:.{digits}g}K" if 1000 <= value < 99_995 else format(value, digits)
