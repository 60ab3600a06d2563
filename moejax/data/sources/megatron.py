"""Read Megatron's indexed data sets: ``NAME.bin`` holds tokens, ``NAME.idx`` the start of each sequence and document.

The little-endian index contains the magic number ``MMIDIDX`` with two zero bytes, version 1 (uint64), and the code of
the token type (uint8). The numbers of sequences and of document boundaries (uint64 each) follow, then the tokens per
sequence (int32), the byte offset of each sequence (int64) and the first sequence of each document (int64). Source:
Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moejax.data.source import INPUT_SHARD_BYTES, Broken, Corrupt, Document, File, FileRange, SourceOptions, file
from moejax.data.sources.token_files import mapped, native
from moejax.errors import UserError
from moejax.wording import says, told

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER_BYTES = len(_MAGIC) + 8 + 1 + 8 + 8
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


def index_of(path: Path) -> Path:
    """Return the path of the index that marks a ``.bin`` file as Megatron's."""
    return path.with_suffix(".idx")


@dataclass(frozen=True)
class MegatronDocuments(FileRange):
    """Documents ``[start, end)`` of a data set."""

    index: File
    end_of_document: int
    size_bytes: int
    BEFORE_START = ", document "

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield each document's joined sequences without the end-of-document token."""
        try:
            index = _Index(self.index)
            tokens = mapped(self.file, index.dtype)
        except (OSError, ValueError) as error:
            yield Corrupt(self.name, f"unreadable ({says('NumPy', error)})", self.size_bytes)
            return
        for number in range(self.start, self.end):
            first, last = index.first_token(number), index.first_token(number + 1)
            name = f"{self.file.name}:{number}"
            if last > len(tokens):
                yield Corrupt(name, "its tokens are beyond the end of the file")
                continue
            content = native(tokens[first:last])
            if len(content) and content[-1] == self.end_of_document:
                content = content[:-1]
            yield Document(name, content)


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[MegatronDocuments | Broken]:
    """Yield ranges of documents of about ``INPUT_SHARD_BYTES``.

    Raises:
      UserError: no tokenizer was named for these tokens.
    """
    for tokens in files:
        end_of_document = options.end_in(tokens.path)
        try:
            described = file(index_of(Path(tokens.path)))
            index = _Index(described)
            index.check()
            if (end := index.first_token(index.documents) * index.dtype.itemsize) < tokens.size:
                raise UserError(f"{index.name} describes only {end:,} of {tokens.size:,} bytes")
        except (OSError, ValueError) as error:
            yield Broken(tokens, f"its index cannot be used ({told(error)})")
            continue
        step = max(1, index.documents * INPUT_SHARD_BYTES // max(tokens.size, 1))
        for start in range(0, index.documents, step):
            end = min(start + step, index.documents)
            size = (index.first_token(end) - index.first_token(start)) * index.dtype.itemsize
            yield MegatronDocuments(tokens, start, end, described, end_of_document, size)


class _Index:
    def __init__(self, file: File):
        with open(file.path, "rb") as stream:
            header = stream.read(_HEADER_BYTES)
        if not header.startswith(_MAGIC):
            raise UserError(f"{file.name} does not begin with an index header")
        if len(header) < _HEADER_BYTES:
            raise UserError(f"{file.name} is cut short")
        version, code, sequences, boundaries = struct.unpack("<QBQQ", header[len(_MAGIC) :])
        if version != 1:
            raise UserError(f"{file.name} is of version {version}, not 1")
        if code not in _TYPES:
            raise UserError(f"{file.name} has token type {code}, which is not an integer type")
        self.name, self.dtype = file.name, np.dtype(_TYPES[code]).newbyteorder("<")
        raw = mapped(file, np.dtype(np.uint8), _HEADER_BYTES)
        sizes = (4 * sequences, 8 * sequences, 8 * boundaries)
        if len(raw) < sum(sizes) or not boundaries:
            raise UserError(f"{file.name} is cut short")
        lengths, pointers, documents = np.split(raw[: sum(sizes)], np.cumsum(sizes)[:-1])
        self._lengths, self._pointers = lengths.view("<i4"), pointers.view("<i8")
        self._documents = documents.view("<i8")
        self.documents = boundaries - 1

    def check(self) -> None:
        """Raise ``UserError`` unless the sequences are contiguous and the documents cover all sequences in order, as in
        files written by Megatron.
        """
        lengths, pointers, documents = self._lengths, self._pointers, self._documents
        expected = 0
        for here in range(0, len(lengths), _CHUNK):
            sizes = lengths[here : here + _CHUNK].astype(np.int64) * self.dtype.itemsize
            begins = expected + np.cumsum(sizes) - sizes
            wrong = np.flatnonzero((sizes < 0) | (pointers[here : here + _CHUNK] != begins))
            if len(wrong):
                raise UserError(
                    f"sequence {here + wrong[0]:,} in {self.name} does not begin where the previous sequence ends"
                )
            expected += int(sizes.sum())
        if documents[0] != 0 or documents[-1] != len(lengths) or (documents[1:] < documents[:-1]).any():
            raise UserError(f"the documents in {self.name} do not cover its {len(lengths):,} sequences in order")

    def first_token(self, document: int) -> int:
        """Return the position of a document's first token, or for ``documents`` the end of the last document."""
        sequence = int(self._documents[document])
        if sequence < len(self._pointers):
            return int(self._pointers[sequence]) // self.dtype.itemsize
        return int(self._pointers[-1]) // self.dtype.itemsize + int(self._lengths[-1]) if sequence else 0


_CHUNK = 2**20
