"""Files of one long row of tokens: ``.bin`` (nanoGPT's bare tokens, llm.c's with its header) and ``.npy``.

Documents are what lies between two end-of-document tokens, whether the writer put them before or after a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moejax.data.source import INPUT_SHARD_BYTES, Broken, Corrupt, Document, File, SourceOptions, ranges
from moejax.errors import UserError
from moejax.wording import told

_LLM_C_MAGIC = 20240520
_LLM_C_HEADER_BYTES = 256 * 4

LONGEST_DOCUMENT = 16 * 2**20
"""Tokens after which a document is cut, so that a file without end-of-document tokens does not fill the memory."""

_CHUNK = 2**20


@dataclass(frozen=True)
class Tokens:
    """The documents that begin in tokens ``[start, end)`` of a file."""

    file: File
    type: str
    """NumPy's name of the tokens' type."""
    offset: int
    """Bytes in front of the first token."""
    end_of_document: int
    start: int
    end: int

    @property
    def name(self) -> str:
        """The file's, with the token it begins at."""
        return f"{self.file.name}@{self.start}" if self.start else self.file.name

    @property
    def size_bytes(self) -> int:
        """Bytes of these tokens."""
        return (self.end - self.start) * np.dtype(self.type).itemsize

    def documents(self) -> Iterator[Document | Corrupt]:
        """Tokens between two that end a document, without those; nothing where two of them touch."""
        tokens = np.memmap(self.file.path, self.type, "r", self.offset)
        here = self.start
        if here:
            # The document that reaches in from the input shard before belongs to that one.
            here = _next_end(tokens, self.end_of_document, here - 1, self.end)[0] + 1
        ended = True
        while here < self.end or (not ended and here < len(tokens)):
            longest = min(here + LONGEST_DOCUMENT, len(tokens))
            stop, ended = _next_end(tokens, self.end_of_document, here, longest)
            if stop > here:
                yield Document(f"{self.file.name}@{here}", np.array(tokens[here:stop]))
            here = stop + ended


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[Tokens | Broken]:
    """Ranges of tokens.

    Raises:
      UserError: no tokenizer was named whose tokens these are.
    """
    for file in files:
        end_of_document = options.end_in(file.path)
        try:
            dtype, offset = _layout(file, options)
        except ValueError as error:
            yield Broken(file, told(error))
            continue
        count = (file.size - offset) // dtype.itemsize
        for start, end in ranges(count, INPUT_SHARD_BYTES // dtype.itemsize):
            yield Tokens(file, dtype.name, offset, end_of_document, start, end)


def _layout(file: File, options: SourceOptions) -> tuple[np.dtype, int]:
    if file.path.endswith(".npy"):
        mapped = np.load(file.path, mmap_mode="r")
        if mapped.ndim != 1 or mapped.dtype.kind not in "iu":
            raise UserError(f"it holds {mapped.dtype} of shape {mapped.shape}, not one row of whole numbers")
        return mapped.dtype, int(mapped.offset)
    dtype = np.dtype(f"u{options.token_bytes}")
    with open(file.path, "rb") as stream:
        begins = stream.read(4)
    return dtype, _LLM_C_HEADER_BYTES if begins == _LLM_C_MAGIC.to_bytes(4, "little") else 0


def _next_end(tokens: np.ndarray, end_of_document: int, start: int, limit: int) -> tuple[int, bool]:
    """Where the document that ``start`` lies in ends, or ``limit``; and whether a token there says that it ends."""
    for here in range(start, limit, _CHUNK):
        ends = np.flatnonzero(tokens[here : min(here + _CHUNK, limit)] == end_of_document)
        if len(ends):
            return here + int(ends[0]), True
    return limit, False
