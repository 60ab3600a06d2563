"""Batch texts of different lengths into few shapes, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

SHORTEST = 32
"""Minimum number of tokens of a row."""


class Batch(NamedTuple):
    """Rows that are computed together."""

    items: tuple[int, ...]
    """Indices of the items in the list."""
    rows: int
    """Number of rows, equal for all batches of this length; rows without an item are empty."""
    length: int
    """Number of tokens per row."""


def padded(size: int, longest: int) -> int:
    """Return the smallest of 32, 48, 64, 96, 128, … that is at least ``size``, and at most ``longest``."""
    length = SHORTEST
    while length < size:
        # Alternate between factors of 3/2 and 4/3, so that every second length is a power of two.
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return min(length, longest)


def batches(sizes: Sequence[int], *, longest: int, batch_tokens: int) -> Iterator[Batch]:
    """Batch every item once, longest rows first, with at most ``batch_tokens`` tokens but at least one row."""
    by_length: dict[int, list[int]] = {}
    for item, size in enumerate(sizes):
        by_length.setdefault(padded(size, longest), []).append(item)
    for length, items in sorted(by_length.items(), reverse=True):
        rows = min(max(1, batch_tokens // length), 1 << (len(items) - 1).bit_length())
        for start in range(0, len(items), rows):
            yield Batch(tuple(items[start : start + rows]), rows, length)
