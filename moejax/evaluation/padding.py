"""Texts of many lengths in batches of few shapes, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHORTEST = 32
"""Tokens that a row has at least."""


class Batch(NamedTuple):
    """Rows that are computed together."""

    items: tuple[int, ...]
    """Their places in the list."""
    rows: int
    """As many as every batch of this length has; what is above the number of items is left empty."""
    length: int
    """Tokens of a row."""


def padded(size: int, longest: int) -> int:
    """The smallest of 32, 48, 64, 96, 128, … that is not below ``size``, and at most ``longest``."""
    length = SHORTEST
    while length < size:
        # From a power of two to half as much again, and from there to the next power.
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return min(length, longest)


def batches(sizes: Sequence[int], *, longest: int, batch_tokens: int) -> Iterator[Batch]:
    """Every item once, the longest rows first; ``batch_tokens`` at most, but one row at least."""
    by_length: dict[int, list[int]] = {}
    for item, size in enumerate(sizes):
        by_length.setdefault(padded(size, longest), []).append(item)
    for length, items in sorted(by_length.items(), reverse=True):
        rows = min(max(1, batch_tokens // length), 1 << (len(items) - 1).bit_length())
        for start in range(0, len(items), rows):
            yield Batch(tuple(items[start : start + rows]), rows, length)
