"""How tokens are cut into the rows of batches. A row is ``length + 1`` tokens: inputs, and targets one further on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from moejax.data.packing import Packed
from moejax.data.stream import Stream

Row = dict[str, np.ndarray]
"""``tokens`` Int32 (length + 1); of packed documents also ``segments``, same shape: the number of the document within
the row, from 1, and 0 where the row is filled up. Attention stays within a segment, and a target counts if it lies in
the same one as its input."""


@runtime_checkable
class Rows(Protocol):
    """Rows by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> Row:
        """A row, the same however often it is asked for."""
        ...


class Windows:
    """Overlapping-by-one windows of the running text: row i is tokens i·T … (i+1)·T inclusive."""

    def __init__(self, stream: Stream, length: int):
        self._stream = stream
        self._length = length

    def __len__(self) -> int:
        return max(0, len(self._stream) - 1) // self._length

    def __getitem__(self, index: Any) -> dict[str, Int32[np.ndarray, " length_plus_1"]]:
        start = int(index) * self._length
        return {"tokens": self._stream.read(start, start + self._length + 1)}


PACKINGS: dict[str, Callable[[Stream, int], Rows]] = {"windows": Windows, "documents": Packed}
"""Ways to cut tokens into rows, by the name that a config gives."""

ARRAYS = {"windows": ("tokens",), "documents": ("tokens", "segments")}
"""What the rows of each consist of."""


def counted(row: Row) -> np.ndarray:
    """Bool (…, length): which targets count, of a row or a batch."""
    if "segments" not in row:
        return np.ones(row["tokens"][..., 1:].shape, bool)
    segments = row["segments"]
    return (segments[..., 1:] == segments[..., :-1]) & (segments[..., 1:] > 0)
