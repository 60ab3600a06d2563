"""Tables in a terminal, and the same as plain text in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from moejax.wording import without_empty


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str] = ()) -> None:
    """Print a table to stdout: the first column and those in ``words`` read from the left, the others are numbers.

    Columns in which nothing stands are left out.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns, rows = without_empty(columns, rows)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for i, column in enumerate(columns):
        text = i == 0 or column in words
        table.add_column(
            column, justify="left" if text else "right", no_wrap=i == 0 or not text, overflow="fold", header_style="dim"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
    console = Console(width=width)
    console.print(Text(title, style="bold"))
    console.print(table)
    console.print()
