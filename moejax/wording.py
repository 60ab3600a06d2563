"""Sentences for people."""

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
