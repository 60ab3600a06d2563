"""Tables in a terminal, and the same as plain text in a pipe."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moejax.wording import without_empty

if TYPE_CHECKING:
    from rich.text import Text

GAP, NARROW = 3, 2
"""Blanks between columns, and where a line would be too short."""
NARROWEST = 20
"""Characters of a line in which a table is printed, whatever the terminal says."""
WORDS = 16
"""To how many characters a column of words may be wrapped before the table is cut in two."""


def printable(text: str) -> str:
    """A text whose control characters, such as those that move a terminal's cursor, are written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def literal(text: str, style: str = "") -> Text:
    """A text for Rich as it stands: names and reasons may hold what Rich takes for its markup."""
    from rich.text import Text

    return Text(printable(text), style=style)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[str] = ()) -> None:
    """Print a table to stdout: the first column and those in ``words`` read from the left, the others are numbers.

    Columns in which nothing stands are left out. What is too wide for the terminal goes on below, beside the first
    column again: no number is cut.
    """
    from rich.console import Console
    from rich.table import Table

    columns, rows = without_empty(columns, [[printable(cell) for cell in row] for row in rows])
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
    # Some terminals and programs say that they have no width; a table is printed all the same.
    console = Console(width=width)
    console.width = max(console.width, NARROWEST)
    wrapped = [column in words for column in columns]
    cells = [[row[i] for row in rows] for i in range(len(columns))]
    wide = [_width([column, *cells[i]]) for i, column in enumerate(columns)]
    heads, gap = list(columns), GAP
    if sum(wide) + GAP * (len(wide) - 1) > console.width:
        gap, heads = NARROW, [_folded(column, _width(cells[i])) for i, column in enumerate(columns)]
    wide = [_width([head, *cells[i]]) for i, head in enumerate(heads)]
    least = [min(w, max(WORDS, _longest(cells[i]))) if wrapped[i] else w for i, w in enumerate(wide)]
    console.print(literal(title, style="bold"))
    pieces = _pieces(least, gap, console.width)
    for piece in pieces:
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
        for i in piece:
            left = i == 0 or wrapped[i]
            table.add_column(
                heads[i],
                justify="left" if left else "right",
                no_wrap=not wrapped[i] and (i > 0 or wide[0] <= console.width // 2),
                overflow="fold",
                header_style="dim",
            )
        for row in rows:
            if piece == pieces[0] or any(row[i] for i in piece[1:]):
                table.add_row(*(literal(row[i]) for i in piece))
        console.print(table)
        console.print()


def _pieces(least: Sequence[int], gap: int, width: int) -> list[list[int]]:
    """Columns by number, as many to a piece as fit beside the first."""
    if not least:
        return []
    pieces, first = [[0]], min(least[0], width // 2)
    for i in range(1, len(least)):
        room = width - first - sum(gap + least[j] for j in pieces[-1][1:])
        if room < gap + least[i] and len(pieces[-1]) > 1:
            pieces.append([0])
        pieces[-1].append(i)
    return pieces


def _folded(head: str, width: int) -> str:
    """On several lines, as wide as what stands below or as its longest word."""
    return "\n".join(textwrap.wrap(head, max(width, _longest([head]), 1), break_long_words=False))


def _width(cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0)


def _longest(cells: Sequence[str]) -> int:
    """The longest word: wrapped at blanks, it stays in one piece."""
    return max((_width([word]) for cell in cells for word in cell.split()), default=0)
