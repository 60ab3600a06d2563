"""A long row of tokens, made of documents."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Int32


@runtime_checkable
class Stream(Protocol):
    """What rows are cut from."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Int32[np.ndarray, " tokens"]:
        """Tokens ``start`` … ``stop`` - 1."""
        ...

    def ends(self) -> list[Int[np.ndarray, " _"]]:
        """Per shard, the position after the last token of each document, counted from the stream's beginning."""
        ...
