"""A figure: the drawing, what to see in it, and the data behind it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure as Drawing

from moejax.table_file import inert


@dataclass(frozen=True)
class Figure:
    """One figure of a report."""

    title: str
    caption: str
    """What to see, in a sentence or two."""
    drawing: Drawing
    rows: Sequence[dict[str, Any]]
    """The data behind the figure; units are in the names."""

    def csv(self) -> str:
        """The rows as CSV; empty cells where a row lacks a column."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writerow({name: inert(name) for name in names})
        writer.writerows({name: inert(value) for name, value in row.items()} for row in self.rows)
        return text.getvalue()
