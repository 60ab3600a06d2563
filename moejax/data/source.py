"""The one interface between where text comes from and all the rest.

A source is a list of parts. Parts are independent of each other, so that they can be read in parallel and done once;
their order, and that of the documents in each, is the order of the tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from moejax.data.document import Corrupt, Document

PART_BYTES = 32 * 2**20
"""Size to which parts are cut or gathered where their format allows; a compressed file is one part."""


@runtime_checkable
class Part(Protocol):
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
        """Streams what the part holds; never all of it at once."""
        ...


@dataclass(frozen=True)
class Reading:
    """Choices that some formats need."""

    text_field: str = "text"
    """Field of a record that holds its text."""
    end_of_document: int | None = None
    """Token after which a document ends, in files of tokens. None: the tokenizer reads text."""
    token_bytes: int = 2
    """Bytes per token in ``.bin`` files that do not say it."""
    single_file: bool = False
    """The source is one file: a text is cut into several documents, as a single one has no second side to hold out."""


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
    """The file at ``path``, now; one that is not there is found missing when it is read."""
    try:
        status = path.stat()
    except OSError:
        return File(str(path.absolute()), 0, 0)
    return File(str(path.absolute()), status.st_size, status.st_mtime_ns)


def ranges(size: int, step: int) -> Iterator[tuple[int, int]]:
    """``[start, end)`` that cover ``size`` in steps."""
    for start in range(0, size, max(step, 1)):
        yield start, min(start + step, size)
