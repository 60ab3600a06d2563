"""Bytes as tokens: nothing to train, nothing unknown."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class BytesTokenizer:
    """Token b is the byte b; token 256 ends a document."""

    name: str = "bytes"
    vocab_size: int = 257
    end_of_document: int = 256
    opening: tuple[int, ...] = ()
    sha256: str = hashlib.sha256(b"bytes, then 256").hexdigest()

    def encode(self, texts: Sequence[bytes]) -> list[np.ndarray | None]:
        """Uint8."""
        return [np.frombuffer(text, np.uint8) for text in texts]

    def decode(self, tokens: np.ndarray) -> str:
        """With a replacement sign where the bytes are no UTF-8, and without the ends of documents."""
        return tokens[tokens < 256].astype(np.uint8).tobytes().decode(errors="replace")

    def bytes_per_token(self) -> np.ndarray:
        """One each."""
        return np.append(np.ones(256, np.int32), np.int32(0))

    def save(self, folder: Path) -> str:
        """Needs no file."""
        return self.name
