"""Megatron's indexed data sets: ``NAME.bin`` holds tokens, ``NAME.idx`` where each sequence and document begins.

Layout of the index, little-endian: the magic ``MMIDIDX`` and two zero bytes, version 1 (uint64), code of the tokens'
type (uint8), number of sequences and of document boundaries (uint64 each), tokens per sequence (int32 each), byte
offset of each sequence (int64), and the first sequence of each document (int64). Source: Megatron-LM,
``megatron/core/datasets/indexed_dataset.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moejax.data.source import INPUT_SHARD_BYTES, Broken, Corrupt, Document, File, SourceOptions, file
from moejax.errors import UserError
from moejax.wording import says, told

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER_BYTES = len(_MAGIC) + 8 + 1 + 8 + 8
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


def index_of(path: Path) -> Path:
    """The index that makes a ``.bin`` file Megatron's."""
    return path.with_suffix(".idx")


@dataclass(frozen=True)
class MegatronDocuments:
    """Documents ``[start, end)`` of a data set."""

    file: File
    index: File
    end_of_document: int
    start: int
    end: int
    size_bytes: int

    @property
    def name(self) -> str:
        """The file's, with its first document."""
        return f"{self.file.name}, document {self.start}" if self.start else self.file.name

    def documents(self) -> Iterator[Document | Corrupt]:
        """Each document's sequences joined, without the token that ends it."""
        index = _Index(Path(self.index.path))
        tokens = np.memmap(self.file.path, index.dtype, "r")
        for number in range(self.start, self.end):
            first, last = index.span(number)
            name = f"{self.file.name}:{number}"
            if last > len(tokens):
                yield Corrupt(name, "its tokens lie beyond the end of the file")
                continue
            content = np.array(tokens[first:last])
            if len(content) and content[-1] == self.end_of_document:
                content = content[:-1]
            yield Document(name, content)


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[MegatronDocuments | Broken]:
    """Ranges of documents of about ``INPUT_SHARD_BYTES``.

    Raises:
      UserError: no tokenizer was named whose tokens these are.
    """
    for tokens in files:
        end_of_document = options.end_in(tokens.path)
        try:
            index = _Index(index_of(Path(tokens.path)))
        except ValueError as error:
            yield Broken(tokens, f"its index cannot be read: {told(error)}")
            continue
        except (OSError, struct.error, KeyError) as error:
            yield Broken(tokens, f"its index cannot be read ({says('the reader', error)})")
            continue
        described = file(index_of(Path(tokens.path)))
        step = max(1, index.documents * INPUT_SHARD_BYTES // max(tokens.size, 1))
        for start in range(0, index.documents, step):
            end = min(start + step, index.documents)
            size = (index.span(end - 1)[1] - index.span(start)[0]) * index.dtype.itemsize
            yield MegatronDocuments(tokens, described, end_of_document, start, end, size)


class _Index:
    """The arrays of an index file, memory-mapped."""

    def __init__(self, path: Path):
        with path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
        if not header.startswith(_MAGIC):
            raise UserError(f"{path.name} does not begin as an index does")
        version, code, sequences, boundaries = struct.unpack("<QBQQ", header[len(_MAGIC) :])
        if version != 1:
            raise UserError(f"{path.name} is of version {version}, not 1")
        if code not in _TYPES:
            raise UserError(f"{path.name} says that its tokens are of type {code}, which holds no whole numbers")
        self.dtype = np.dtype(_TYPES[code]).newbyteorder("<")
        raw = np.memmap(path, np.uint8, "r", _HEADER_BYTES)
        sizes = (4 * sequences, 8 * sequences, 8 * boundaries)
        if len(raw) < sum(sizes):
            raise UserError(f"{path.name} is cut short")
        lengths, pointers, documents = np.split(raw[: sum(sizes)], np.cumsum(sizes)[:-1])
        self._lengths, self._pointers = lengths.view("<i4"), pointers.view("<i8")
        self._documents = documents.view("<i8")
        self.documents = boundaries - 1

    def span(self, document: int) -> tuple[int, int]:
        """First token of a document, and the one after its last; its sequences lie one after the other."""
        first, last = int(self._documents[document]), int(self._documents[document + 1]) - 1
        if last < first:
            return 0, 0
        start = int(self._pointers[first]) // self.dtype.itemsize
        return start, int(self._pointers[last]) // self.dtype.itemsize + int(self._lengths[last])
