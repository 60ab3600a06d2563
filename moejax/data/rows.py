"""Cut a token stream into rows of batches, as windows of the running text or as packed documents. Select the fixed
validation rows.

A row has ``length + 1`` tokens: inputs, and targets shifted by one. With packed documents, attention stays within a
document. Each document begins with the end-of-document token of the previous one, as a prompt does at inference. A
document longer than a row is cut into pieces that overlap by one token, so every token except the first of the stream
is a target exactly once per epoch. Best-fit decreasing packs the pieces (Johnson, "Near-optimal bin packing
algorithms", 1973), one block of consecutive documents at a time.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32

from moejax.errors import UserError


@runtime_checkable
class Stream(Protocol):
    """A token stream from which rows are cut."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Int32[np.ndarray, " tokens"]:
        """Return the tokens ``start`` … ``stop`` - 1."""
        ...

    def ends(self) -> list[Int[np.ndarray, " _"]]:
        """Return, per shard, the position after the last token of each document, counted from the start of the
        stream."""
        ...

    def kept(self, name: str, make: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        """Return the result of ``make``, or the cached result of an earlier call with this name."""
        ...


BLOCK_PIECES = 2**16
"""Number of documents whose pieces are packed together."""


class Packed:
    """Rows of packed documents: tokens, and segments that number the documents of a row. Segment 0 is padding."""

    def __init__(self, stream: Stream, length: int):
        self._stream = stream
        self._length = length
        # Packing takes 0.7 s and 14 MB per million documents. If every process packed them, a large run would start
        # minutes later.
        self._starts, self._lengths, self._rows = stream.kept(
            f"packed-{length}-{BLOCK_PIECES}", lambda: plan(stream.ends(), length + 1)
        )

    def __len__(self) -> int:
        return len(self._rows) - 1

    def __getitem__(self, index: SupportsIndex) -> dict[str, np.ndarray]:
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
    """Pack pieces into rows; return each piece's first token and length, row by row, and the index of each row's first
    piece.

    ``ends`` holds, shard by shard, the position after each document's last token; ``capacity`` is the length of a row.
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
    """Yield the first tokens and lengths of all documents' pieces, ``BLOCK_PIECES`` documents at a time."""
    last = 0
    for of_shard in ends:
        for block in np.array_split(of_shard, -(-len(of_shard) // BLOCK_PIECES)):
            # A document begins with the end token of the previous one, so that its first token is predicted too.
            first = np.maximum(np.concatenate([[last], block[:-1]]) - 1, 0)
            last = int(block[-1])
            targets = block - first - 1
            pieces = -(-targets // (capacity - 1))
            # If the first document has only one token, it has no target and therefore no piece.
            offset = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            skipped = offset * (capacity - 1)
            yield np.repeat(first, pieces) + skipped, np.minimum(np.repeat(targets, pieces) - skipped + 1, capacity)


def _best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-lengths, kind="stable")
    full = int(np.searchsorted(-lengths[order], -capacity, side="right"))
    rows: list[list[int]] = []
    # Row numbers keyed by free space, and the free spaces in ascending order.
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


Row = dict[str, np.ndarray]
"""A row: ``tokens``, Int32 (length + 1). Packed documents also have ``segments`` of the same shape: each token's
document number within the row, from 1, or 0 for padding. Attention stays within a segment, and a target counts if it is
in the same segment as its input.
"""


@runtime_checkable
class Rows(Protocol):
    """Rows accessed by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> Row:
        """Return a row; repeated calls return the same row."""
        ...


class Windows:
    """Windows of the running text that overlap by one token: row i consists of tokens i·T to (i+1)·T inclusive."""

    def __init__(self, stream: Stream, length: int):
        self._stream = stream
        self._length = length

    def __len__(self) -> int:
        return max(0, len(self._stream) - 1) // self._length

    def __getitem__(self, index: SupportsIndex) -> dict[str, Int32[np.ndarray, " length_plus_1"]]:
        start = int(index) * self._length
        return {"tokens": self._stream.read(start, start + self._length + 1)}


class CompleteWindows:
    """The rows of ``Windows``, and the incomplete last one, padded. Segment 0 is padding."""

    def __init__(self, stream: Stream, length: int):
        self._stream = stream
        self._length = length

    def __len__(self) -> int:
        return -(-max(0, len(self._stream) - 1) // self._length)

    def __getitem__(self, index: SupportsIndex) -> dict[str, np.ndarray]:
        start = int(index) * self._length
        read = self._stream.read(start, min(start + self._length + 1, len(self._stream)))
        padding = (0, self._length + 1 - len(read))
        return {"tokens": np.pad(read, padding), "segments": np.pad(np.ones_like(read), padding)}


class EvenlySpread:
    """A selection of ``count`` rows, spread evenly over a set."""

    def __init__(self, rows: Rows, count: int):
        self._rows = rows
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> Row:
        return self._rows[int(index) * len(self._rows) // self._count]


PACKINGS: dict[str, Callable[[Stream, int], Rows]] = {"windows": Windows, "documents": Packed}
"""Functions that cut tokens into rows, keyed by ``DataConfig.packing``."""

ARRAYS = {"windows": ("tokens",), "documents": ("tokens", "segments")}
"""Names of the arrays in the rows of each packing."""


def counted(row: Row) -> np.ndarray:
    """Return Bool (…, length): whether each target of a row or batch counts in the loss."""
    if "segments" not in row:
        return np.ones(row["tokens"][..., 1:].shape, bool)
    segments = row["segments"]
    return (segments[..., 1:] == segments[..., :-1]) & (segments[..., 1:] > 0)


@dataclass(frozen=True)
class ValidationPart:
    """Sizes of the validation rows of one set."""

    name: str
    targets: int
    """Number of targets that count."""
    bytes: float | None
    """Number of text bytes of these targets; None if unknown."""
    in_loss: bool = True
    """True if the rows are part of the mean loss; sets of weight 0 are evaluated separately."""


@dataclass(frozen=True, eq=False)
class Validation:
    """The held-out rows; they are the same for every batch size, mesh and step."""

    rows: Row
    """Arrays (rows, length + 1)."""
    source: np.ndarray
    """Int (rows): index of each row's set."""
    parts: tuple[ValidationPart, ...]
    """One part for each set."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens, including padding, in the rows that are part of the loss."""
        width = self.rows["tokens"].shape[1]
        return int(self.in_loss[self.source].sum()) * (width - 1)

    @property
    def in_loss(self) -> np.ndarray:
        """Return Bool (sets): whether each set is part of the loss."""
        return np.array([part.in_loss for part in self.parts])

    @property
    def targets(self) -> int:
        """Return the number of targets that count in the loss."""
        return sum(part.targets for part in self.parts if part.in_loss)

    @property
    def bytes(self) -> float | None:
        """Return the number of text bytes of the targets that count; None if it is unknown for a set."""
        parts = [part for part in self.parts if part.in_loss]
        known = [part.bytes for part in parts if part.bytes is not None]
        return sum(known) if len(known) == len(parts) else None


def chosen(rows: Rows, count: int) -> Row:
    """Return ``count`` evenly spread rows, or all rows if there are fewer.

    Raises:
      UserError: there are no rows.
    """
    if not len(rows):
        raise UserError("The validation text is shorter than one row; lower sequence_length or give more text.")
    numbers = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))
    picked = [rows[int(number)] for number in numbers]
    return {name: np.stack([row[name] for row in picked]) for name in picked[0]}


def shares(weights: Sequence[float], count: int) -> list[int]:
    """Divide ``count`` rows among sets in proportion to their weights, with at least one row for each set."""
    return [max(1, round(count * weight / sum(weights))) for weight in weights]
