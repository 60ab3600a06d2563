"""What a source yields: documents, and records that could not be read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Document:
    """One text, or its tokens if the source holds tokens."""

    name: str
    """Where it stands, for messages: ``web.jsonl:12``."""
    content: bytes | np.ndarray
    """UTF-8 text, or token ids without the one that ends a document."""
    key: bytes | None = None
    """What decides its side of the split. None: its content, so that equal documents lie on the same side."""

    def digest(self) -> bytes:
        """SHA-256 of the content; of tokens, as little-endian int64, whatever type they are stored in."""
        text = self.content if isinstance(self.content, bytes) else self.content.astype("<i8").tobytes()
        return hashlib.sha256(text).digest()


@dataclass(frozen=True)
class Corrupt:
    """A record that could not be read."""

    name: str
    why: str
    lost_bytes: int = 0
    """Bytes of the input lost with it, where that is more than one record."""
