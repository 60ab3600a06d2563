"""Define sources of text. A source is a list of input shards, and an input shard streams documents.

Input shards are independent of each other, so that they can be read in parallel and only once. Their order, and that of
the documents in each, is the order of the tokens.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from moejax import input_file
from moejax.errors import UserError


@dataclass(frozen=True)
class Document:
    """A text, or its tokens if the source holds tokens."""

    name: str
    """Location of the document for messages, such as ``web.jsonl:12``."""
    content: bytes | np.ndarray
    """UTF-8 text, or token ids without the end-of-document token."""
    key: bytes | None = None
    """Key that determines the split. None: the content, so that equal documents are in the same split."""

    def digest(self) -> bytes:
        """Return the SHA-256 of the content; tokens of any type are hashed as little-endian int64."""
        text = self.content if isinstance(self.content, bytes) else self.content.astype("<i8").tobytes()
        return hashlib.sha256(text).digest()


@dataclass(frozen=True)
class Corrupt:
    """A record that could not be read."""

    name: str
    why: str
    lost_bytes: int = 0
    """Bytes of input lost with the record, if more than one record."""


INPUT_SHARD_BYTES = 32 * 2**20
"""Target size of input shards if the format allows splitting; a compressed file is one input shard."""


@runtime_checkable
class InputShard(Protocol):
    """A frozen dataclass of plain values. The values determine what it reads, so they are its identity."""

    @property
    def name(self) -> str:
        """Return the name for messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return the size on disk, a measure of the work."""
        ...

    def documents(self) -> Iterator[Document | Corrupt]:
        """Stream the documents of the input shard, without loading all of it at once."""
        ...


@dataclass(frozen=True)
class SourceOptions:
    """Options for formats that need them."""

    text_field: str = "text"
    """Field of a record that contains its text."""
    end_of_document: int | None = None
    """Token that ends a document in token files. None: the tokenizer reads text."""
    vocab_size: int = 2**16
    """Vocabulary size of the tokenizer; determines the token type of files that do not specify it."""
    single_file: bool = False
    """True if the source is one file: a text is then cut into several documents, so that some can be held out."""

    def end_in(self, path: str) -> int:
        """Return ``end_of_document`` for a token file.

        Raises:
          UserError: no tokenizer was named for these tokens.
        """
        if self.end_of_document is None:
            raise UserError(
                f"{path} holds tokens; name the tokenizer that made them: a tokenizer.json, or ids:VOCAB:END (for "
                f"GPT-2's, ids:50257:50256)."
            )
        return self.end_of_document


@dataclass(frozen=True)
class File:
    """A file as it was when the source was listed; a changed file is another file."""

    path: str
    size: int
    modified_ns: int

    @property
    def name(self) -> str:
        """Return the name without folders."""
        return os.path.basename(self.path)


def file(path: Path) -> File:
    """Return the current file at ``path``.

    Raises:
      UserError: it is not a regular file, or a Git LFS pointer.
      OSError: the system cannot find it.
    """
    status = input_file.check(path)
    return File(str(path.absolute()), status.st_size, status.st_mtime_ns)


def ranges(size: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``[start, end)`` that cover ``size`` in steps."""
    for start in range(0, size, max(step, 1)):
        yield start, min(start + step, size)


@dataclass(frozen=True)
class WholeFile:
    """An input shard that is a whole file."""

    file: File

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return self.file.name

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole file."""
        return self.file.size


@dataclass(frozen=True)
class FileRange:
    """An input shard that is the part ``[start, end)`` of a file."""

    file: File
    start: int
    end: int
    BEFORE_START: ClassVar[str] = "@"
    """Text of the name between the file and ``start``."""

    @property
    def name(self) -> str:
        """Return the name of the file with ``start``."""
        return f"{self.file.name}{self.BEFORE_START}{self.start}" if self.start else self.file.name


@dataclass(frozen=True)
class Broken(WholeFile):
    """A placeholder for the input shards of an unreadable file."""

    why: str

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield the whole file as one corrupt record."""
        yield Corrupt(self.name, self.why, self.file.size)
