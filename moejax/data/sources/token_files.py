"""Read files with one sequence of tokens: ``.bin`` (bare tokens of nanoGPT, or tokens with llm.c's header) and ``.npy``
(arrays written by ``np.save``, or bare tokens of OLMo-core and nanotron).

A document is the tokens between two end-of-document tokens. It does not matter whether a writer put such a token before
or after each document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moejax.data.source import INPUT_SHARD_BYTES, Broken, Corrupt, Document, File, FileRange, SourceOptions, ranges
from moejax.errors import UserError
from moejax.input_file import inner_suffix
from moejax.wording import says, told

_LLM_C_TYPES = {20240520: "<u2", 20240801: "<u4"}
"""Token types of llm.c files, keyed by the file's first number: GPT-2 and Llama 3 tokens."""
_LLM_C_HEADER_BYTES = 256 * 4

LONGEST_DOCUMENT = 16 * 2**20
"""Number of tokens after which a document is cut, so that a file without end-of-document tokens fits in memory."""

_CHUNK = 2**20


@dataclass(frozen=True)
class Tokens(FileRange):
    """Documents that begin in the token range ``[start, end)`` of a file."""

    type: str
    """NumPy name of the token type with its byte order, such as ``<u2``."""
    offset: int
    """Number of bytes before the first token."""
    end_of_document: int

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes of these tokens."""
        return (self.end - self.start) * np.dtype(self.type).itemsize

    def documents(self) -> Iterator[Document | Corrupt]:
        """Yield the tokens between two end-of-document tokens; nothing if the two are adjacent."""
        try:
            tokens = mapped(self.file, np.dtype(self.type), self.offset)
        except (OSError, ValueError) as error:
            yield Corrupt(self.name, f"unreadable ({says('NumPy', error)})", self.size_bytes)
            return
        here = self.start
        if here:
            # A document that begins in the previous input shard belongs to that shard.
            here = _next_end(tokens, self.end_of_document, here - 1, self.end)[0] + 1
        ended = True
        while here < self.end or (not ended and here < len(tokens)):
            longest = min(here + LONGEST_DOCUMENT, len(tokens))
            stop, ended = _next_end(tokens, self.end_of_document, here, longest)
            if stop > here:
                yield Document(f"{self.file.name}@{here}", native(tokens[here:stop]))
            here = stop + ended


def input_shards(files: Sequence[File], root: Path, options: SourceOptions) -> Iterator[Tokens | Broken]:
    """Yield ranges of tokens.

    Raises:
      UserError: no tokenizer was named for these tokens.
    """
    for file in files:
        end_of_document = options.end_in(file.path)
        try:
            dtype, offset = _layout(file, options.vocab_size, end_of_document)
        except (OSError, UserError) as error:
            yield Broken(file, told(error))
            continue
        count = (file.size - offset) // dtype.itemsize
        for start, end in ranges(count, INPUT_SHARD_BYTES // dtype.itemsize):
            yield Tokens(file, start, end, dtype.str, offset, end_of_document)


def mapped(file: File, dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """Memory-map all whole values after ``offset``; return an empty array if there are no values, because an empty file
    cannot be mapped.
    """
    count = (file.size - offset) // dtype.itemsize
    return np.memmap(file.path, dtype, "r", offset, (count,)) if count > 0 else np.zeros(0, dtype)


def native(tokens: np.ndarray) -> np.ndarray:
    """Copy tokens out of a mapped file, in the native byte order."""
    return np.array(tokens, tokens.dtype.newbyteorder("="))


def _layout(file: File, vocab_size: int, end_of_document: int) -> tuple[np.dtype, int]:
    is_npy = inner_suffix(file.path) == ".npy"
    with open(file.path, "rb") as stream:
        begins = stream.read(_LLM_C_HEADER_BYTES)
    if not begins:
        raise UserError("it is empty")
    if is_npy and begins.startswith(b"\x93NUMPY"):
        return _layout_of_array(file)
    if is_npy and begins.startswith(b"PK"):
        raise UserError("it is a zip archive written by np.savez; write only its token array, with np.save")
    if is_npy and b"descr" in begins[:128]:
        raise UserError("its np.save header is damaged")
    if not is_npy and (of_llm_c := _LLM_C_TYPES.get(int.from_bytes(begins[:4], "little"))):
        dtype = np.dtype(of_llm_c)
        _check_count(file, int.from_bytes(begins[8:12], "little"), dtype, _LLM_C_HEADER_BYTES)
        return dtype, _LLM_C_HEADER_BYTES
    if len(begins) == _LLM_C_HEADER_BYTES and any(begins[:12]) and not any(begins[12:]):
        raise UserError("it begins like a file of llm.c, but its first number is not that of a token file")
    dtype = _bare_type(file, vocab_size)
    if file.size % dtype.itemsize:
        raise UserError(f"its {file.size:,} bytes are not a whole number of tokens of {dtype.itemsize} bytes")
    tokens = mapped(file, dtype)[:LONGEST_DOCUMENT]
    if is_npy and not _next_end(tokens, end_of_document, 0, len(tokens))[1]:
        raise UserError(
            f"it is neither an array written by np.save nor a file of plain tokens of {dtype.itemsize} bytes, "
            f"because it has no end-of-document token ({end_of_document})"
        )
    return dtype, 0


def _layout_of_array(file: File) -> tuple[np.dtype, int]:
    try:
        array = np.lib.format.open_memmap(file.path, mode="r")
    # NumPy evaluates the header, which may hold any expression.
    except Exception as error:
        raise UserError(f"it is a damaged array ({says('NumPy', error)})") from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"it holds {array.dtype} of shape {array.shape}, not a one-dimensional array of integers")
    _check_count(file, array.size, array.dtype, array.offset)
    return array.dtype, array.offset


def _check_count(file: File, count: int, dtype: np.dtype, offset: int) -> None:
    if offset + count * dtype.itemsize != file.size:
        raise UserError(
            f"its header states {count:,} tokens of {dtype.itemsize} bytes, but {file.size - offset:,} bytes follow"
        )


def _bare_type(file: File, vocab_size: int) -> np.dtype:
    """Return the type of tokens without a header. Most writers use the narrowest type for the vocabulary. Return a
    wider type if most values, read as that type, are in the vocabulary.
    """
    usual = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
    for wider in (np.dtype("<u8"), np.dtype("<u4")):
        if file.size >= wider.itemsize > usual.itemsize:
            tokens = mapped(file, wider)
            spread = [tokens[place : place + 2**12] for place in range(0, len(tokens), max(2**12, len(tokens) // 16))]
            sample = np.concatenate(spread)
            sample = sample[sample > 0]
            if len(sample) >= 16 and (sample < vocab_size).mean() > 0.5:
                return wider
    return usual


def _next_end(tokens: np.ndarray, end_of_document: int, start: int, limit: int) -> tuple[int, bool]:
    """Return the end of the document that contains ``start``, at most ``limit``, and whether an end-of-document token
    is at that position.
    """
    for here in range(start, limit, _CHUNK):
        ends = np.flatnonzero(tokens[here : min(here + _CHUNK, limit)] == end_of_document)
        if len(ends):
            return here + int(ends[0]), True
    return limit, False
