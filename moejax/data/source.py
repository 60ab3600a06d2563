"""Sources: where text comes from. A source is a list of input shards, and an input shard streams documents.

Input shards are independent of each other, so that they can be read in parallel and done once; their order, and that of
the documents in each, is the order of the tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from moejax import input_file
from moejax.errors import UserError


@dataclass(frozen=True)
class Document:
    """One text, or its tokens if the source holds tokens."""

    name: str
    """Where it stands, for messages: ``web.jsonl:12``."""
    content: bytes | np.ndarray
    """UTF-8 text, or token ids without the one that ends a document."""
    key: bytes | None = None
    """What decides its split. None: its content, so that equal documents lie in the same split."""

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


INPUT_SHARD_BYTES = 32 * 2**20
"""Size to which input shards are cut or gathered where their format allows; a compressed file is one input shard."""


@runtime_checkable
class InputShard(Protocol):
    """A frozen dataclass of plain values. What it reads is decided by them, so they are its identity."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """On disk, as a measure of the work."""
        ...

    def documents(self) -> Iterator[Document | Corrupt]:
        """Streams what the input shard holds; never all of it at once."""
        ...


@dataclass(frozen=True)
class SourceOptions:
    """Choices that some formats need."""

    text_field: str = "text"
    """Field of a record that holds its text."""
    end_of_document: int | None = None
    """Token after which a document ends, in files of tokens. None: the tokenizer reads text."""
    vocab_size: int = 2**16
    """Tokens that the tokenizer has; decides the type of tokens in files that do not say it."""
    single_file: bool = False
    """The source is one file: a text is cut into several documents, as a single one leaves nothing to hold out."""

    def end_in(self, path: str) -> int:
        """``end_of_document`` for a file of tokens.

        Raises:
          UserError: no tokenizer was named whose tokens these are.
        """
        if self.end_of_document is None:
            raise UserError(
                f"{path} holds tokens; name the tokenizer that made them: a tokenizer.json, or ids:VOCAB:END (for "
                f"GPT-2's, ids:50257:50256)."
            )
        return self.end_of_document


@dataclass(frozen=True)
class File:
    """A file as it was when the source was listed; a changed one is another file."""

    path: str
    size: int
    modified_ns: int

    @property
    def name(self) -> str:
        """Without its folders."""
        return os.path.basename(self.path)


def file(path: Path) -> File:
    """Return the file at ``path`` as it is now.

    Raises:
      UserError: it is no regular file, or a Git LFS pointer.
      OSError: the system cannot find it.
    """
    status = input_file.check(path)
    return File(str(path.absolute()), status.st_size, status.st_mtime_ns)


def ranges(size: int, step: int) -> Iterator[tuple[int, int]]:
    """``[start, end)`` that cover ``size`` in steps."""
    for start in range(0, size, max(step, 1)):
        yield start, min(start + step, size)


@dataclass(frozen=True)
class Broken:
    """Stands for the file's input shards."""

    file: File
    why: str

    @property
    def name(self) -> str:
        """The file's."""
        return self.file.name

    @property
    def size_bytes(self) -> int:
        """The whole file."""
        return self.file.size

    def documents(self) -> Iterator[Document | Corrupt]:
        """The whole file, lost."""
        yield Corrupt(self.name, self.why, self.file.size)
