"""Sentences and tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def some(items: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """The first of a list, and how many more there are: ``a, b and 3 more``."""
    rest = len(items) - most
    return between.join(items[:most]) + (f"{between.rstrip(', ')} and {rest} more" if rest > 0 else "")


def listed(items: Iterable[str], joint: str = "and") -> str:
    """All of a list: ``a, b and c``."""
    *head, last = list(items)
    return f"{', '.join(head)} {joint} {last}" if head else last


def without_empty(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without the columns in which nothing stands but a dash; the first, which names the rows, stays."""
    kept = [i for i in range(len(columns)) if i == 0 or not rows or any(row[i] not in ("", "–") for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]
