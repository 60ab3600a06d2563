"""Whole documents packed into rows, so that no row mixes documents without saying so.

A document longer than a row is cut into pieces that overlap by one token: every token but a document's first is a
target exactly once per epoch. Pieces are packed best-fit decreasing (Johnson, "Near-optimal bin packing algorithms",
1973), a block of neighbouring pieces at a time.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from moejax.data.stream import Stream

BLOCK_PIECES = 2**16
"""Pieces that are packed together."""


class Packed:
    """Rows of packed documents: tokens and segments, 0 where a row is filled up."""

    def __init__(self, stream: Stream, length: int):
        self._stream = stream
        self._length = length
        self._starts, self._lengths, self._rows = plan(stream.ends(), length + 1)

    def __len__(self) -> int:
        return len(self._rows) - 1

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        tokens = np.zeros(self._length + 1, np.int32)
        segments = np.zeros(self._length + 1, np.int32)
        here = 0
        for number, piece in enumerate(range(self._rows[int(index)], self._rows[int(index) + 1]), 1):
            start, length = int(self._starts[piece]), int(self._lengths[piece])
            tokens[here : here + length] = self._stream.read(start, start + length)
            segments[here : here + length] = number
            here += length
        return {"tokens": tokens, "segments": segments}


def plan(
    ends: Sequence[Int[np.ndarray, " _"]], capacity: int
) -> tuple[Int[np.ndarray, " pieces"], Int[np.ndarray, " pieces"], Int[np.ndarray, " rows_plus_1"]]:
    """Which pieces lie in which row: first token and length of each piece, row by row, and each row's first piece.

    ``ends`` holds, shard by shard, the position after each document's last token; ``capacity`` is a row's length.
    """
    starts, lengths, sizes = [], [], []
    for first, long in _blocks(ends, capacity):
        order, pieces_in_row = _best_fit(long, capacity)
        starts.append(first[order])
        lengths.append(long[order])
        sizes.append(pieces_in_row)
    if not sizes:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(1, np.int64)
    rows = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    return np.concatenate(starts), np.concatenate(lengths).astype(np.int32), rows


def _blocks(ends: Sequence[np.ndarray], capacity: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """First token and length of the pieces of all documents, ``BLOCK_PIECES`` documents at a time."""
    last = 0
    for of_shard in ends:
        for block in np.array_split(of_shard, -(-len(of_shard) // BLOCK_PIECES)):
            first = np.concatenate([[last], block[:-1]])
            last = int(block[-1])
            targets = block - first - 1
            pieces = -(-targets // (capacity - 1))
            # A document of one token has nothing to predict, and no piece.
            offset = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            skipped = offset * (capacity - 1)
            yield np.repeat(first, pieces) + skipped, np.minimum(np.repeat(targets, pieces) - skipped + 1, capacity)


def _best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces in the order of the rows they are put in, and how many each row has."""
    order = np.argsort(-lengths, kind="stable")
    full = int(np.searchsorted(-lengths[order], -capacity, side="right"))
    rows: list[list[int]] = []
    # Rows by the space left in them, and those spaces in ascending order.
    open_rows: dict[int, list[int]] = {}
    spaces: list[int] = []

    def leave(row: int, space: int) -> None:
        if space < 2:
            return
        if space not in open_rows:
            open_rows[space] = []
            bisect.insort(spaces, space)
        open_rows[space].append(row)

    for piece, length in zip(order[full:].tolist(), lengths[order[full:]].tolist(), strict=True):
        place = bisect.bisect_left(spaces, length)
        if place == len(spaces):
            rows.append([piece])
            leave(len(rows) - 1, capacity - length)
            continue
        space = spaces[place]
        row = open_rows[space].pop()
        if not open_rows[space]:
            del open_rows[space], spaces[place]
        rows[row].append(piece)
        leave(row, space - length)
    packed = [piece for row in rows for piece in row]
    sizes = [1] * full + [len(row) for row in rows]
    return np.concatenate([order[:full], np.array(packed, np.int64)]), np.array(sizes, np.int64)
