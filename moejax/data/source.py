"""Define sources of text. A source is a list of input shards, and an input shard streams documents.

Input shards are independent of each other, so that they can be read in parallel and only once. Tokens follow the order
of the input shards and of their documents.
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
    """Key that determines the split. None: the content determines it, so that equal documents are in the same split."""

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
    """Number of input bytes lost, if more than this record is lost."""


INPUT_SHARD_BYTES = 32 * 2**20
"""Target size of input shards if the format can be split; a compressed file is always one input shard."""


@runtime_checkable
class InputShard(Protocol):
    """An input shard: a frozen dataclass of plain values, which determine its documents and thus identify it."""

    @property
    def name(self) -> str:
        """Return the name for messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return the size on disk, as a measure of the work."""
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
    """Token that ends a document in token files. None if the tokenizer reads text."""
    vocab_size: int = 2**16
    """Vocabulary size of the tokenizer; it determines the token type of files that do not specify a type."""
    single_file: bool = False
    """True if the source is a single file. The file's text is then cut into several documents, so that some can be held
    out.
    """
    held_out: bool = True
    """True if a part of the documents is held out; if not, a single file is one document."""

    def end_in(self, path: str) -> int:
        """Return ``end_of_document`` for the token file at ``path``.

        Raises:
          UserError: no tokenizer was named for these tokens.
        """
        if self.end_of_document is None:
            raise UserError(
                f"{path} holds tokens; name the tokenizer that produced them: a tokenizer.json, or ids:VOCAB:END "
                "(for GPT-2, ids:50257:50256)."
            )
        return self.end_of_document


@dataclass(frozen=True)
class File:
    """A file with its size and modification time when the source was listed. A changed file compares unequal."""

    path: str
    size: int
    modified_ns: int

    @property
    def name(self) -> str:
        """Return the file name without folders."""
        return os.path.basename(self.path)


def file(path: Path) -> File:
    """Return the current file at ``path``.

    Raises:
      UserError: it is not a regular file, or it is a Git LFS pointer.
      OSError: the system cannot find it.
    """
    status = input_file.check(path)
    return File(str(path.absolute()), status.st_size, status.st_mtime_ns)


def ranges(size: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges ``[start, end)`` of at most ``step`` that together cover ``[0, size)``."""
    for start in range(0, size, max(step, 1)):
        yield start, min(start + step, size)


@dataclass(frozen=True)
class WholeFile:
    """An input shard that consists of a whole file."""

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
    """An input shard that consists of the bytes or items ``[start, end)`` of a file."""

    file: File
    start: int
    end: int
    BEFORE_START: ClassVar[str] = "@"
    """Text between the file name and ``start`` in the shard's name."""

    @property
    def name(self) -> str:
        """Return the file name with ``start``."""
        return f"{self.file.name}{self.BEFORE_START}{self.start}" if self.start else self.file.name


@dataclass(frozen=True)
class Broken(WholeFile):
    """A placeholder for the input shards of an unreadable file."""

    why: str

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield the whole file as one corrupt record."""
        yield Corrupt(self.name, self.why, self.file.size)
