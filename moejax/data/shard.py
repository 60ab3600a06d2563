"""Tokenize one input shard: write a file of tokens and a file of document ends per split, and finally a record."""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from moejax.config import dump
from moejax.data.source import Corrupt, Document, InputShard
from moejax.data.tokenizer import Tokenizer
from moejax.data.workers import BytesCallback
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.stored import write_json

SPLITS = ("train", "validation")


def is_held_out(digest: bytes, share: float) -> bool:
    """Return whether a SHA-256 is in the first ``share`` of all hashes. A larger share holds out the same documents and
    additional ones.
    """
    return int.from_bytes(digest[:8]) < share * 2**64


def split_of(document: Document, digest: bytes, share: float) -> str:
    """Return the document's split. The document's key determines it, or without a key ``digest``, its content hash."""
    decides = digest if document.key is None else hashlib.sha256(document.key).digest()
    return SPLITS[is_held_out(decides, share)]


NAMED_CORRUPT = 20
"""Maximum number of corrupt records that a shard names; all of them are counted."""

_BATCH_BYTES = 2**20
_BATCH_DOCUMENTS = 512
_BUFFER_TOKENS = 2**20


@dataclass(frozen=True)
class ShardSplit:
    """Sizes and hashes of one split of a token shard."""

    documents: int
    bytes: int
    """Bytes of text; for documents that are already tokens, the bytes of those tokens."""
    tokens: int
    token_bytes: int
    """Sum of ``Tokenizer.bytes_per_token``; it differs from ``bytes`` if the tokenizer changes the text."""
    sha256: str
    """SHA-256 of the token file."""
    ends_sha256: str = ""
    """SHA-256 of the file of document ends."""


@dataclass(frozen=True)
class TokenShard:
    """Result of tokenizing one input shard."""

    stem: str
    """Prefix of the file names: ``STEM.train.tokens``, ``STEM.train.ends``, the same two for ``validation``, and
    ``STEM.counts.npy``.
    """
    input_shard: str
    sha256: str
    """SHA-256 of the digests of the input shard's documents, in order."""
    train: ShardSplit
    validation: ShardSplit
    corrupt: int
    corrupt_bytes: int
    corrupt_named: tuple[str, ...]


def token_type(vocab_size: int) -> np.dtype:
    """Return the little-endian NumPy type in which tokens are stored."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_shard(
    input_shard: InputShard, stem: str, folder: Path, tokenizer: Tokenizer, share: float, tick: BytesCallback
) -> TokenShard:
    """Tokenize an input shard into ``folder``, a batch of documents at a time.

    Raises:
      UserError: tokens of the input shard are outside the tokenizer's vocabulary.
    """
    digests = hashlib.sha256()
    corrupt = _Losses()
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    with contextlib.ExitStack() as files:
        splits = {name: _Writer(name, stem, folder, tokenizer, counts, files) for name in SPLITS}
        for batch in _batches(input_shard, corrupt):
            for document, tokens in zip(batch, _tokens(batch, tokenizer), strict=True):
                if tokens is None:
                    corrupt.add(Corrupt(document.name, _not_utf8(document)))
                    continue
                _check_ids(document, tokens, tokenizer)
                digest = document.digest()
                digests.update(digest)
                splits[split_of(document, digest, share)].add(document, tokens)
            tick(sum(len(document.content) for document in batch))
        written = {name: writer.finish() for name, writer in splits.items()}
    with atomic_write(folder / f"{stem}.counts.npy") as partial, partial.open("wb") as file:
        np.save(file, counts)
    shard = TokenShard(
        stem=stem,
        input_shard=input_shard.name,
        sha256=digests.hexdigest(),
        corrupt=corrupt.records,
        corrupt_bytes=corrupt.bytes,
        corrupt_named=tuple(corrupt.named),
        **written,
    )
    write_json(folder / f"{stem}.json", dump(shard))
    return shard


class _Losses:
    def __init__(self):
        self.records = self.bytes = 0
        self.named: list[str] = []

    def add(self, record: Corrupt) -> None:
        """Count one record."""
        self.records += 1
        self.bytes += record.lost_bytes
        if len(self.named) < NAMED_CORRUPT:
            self.named.append(f"{record.name}: {record.why}")


class _Writer:
    def __init__(
        self, name: str, stem: str, folder: Path, tokenizer: Tokenizer, counts: np.ndarray, files: contextlib.ExitStack
    ):
        def create(suffix: str) -> BinaryIO:
            partial = files.enter_context(atomic_write(folder / f"{stem}.{name}.{suffix}"))
            return files.enter_context(partial.open("wb"))

        self._files = create("tokens"), create("ends")
        self._end = np.array([tokenizer.end_of_document])
        self._type = token_type(tokenizer.vocab_size)
        self._bytes_per_token = tokenizer.bytes_per_token()
        self._counts, self._own = counts, np.zeros(tokenizer.vocab_size, np.int64)
        self._hash, self._ends_hash = hashlib.sha256(), hashlib.sha256()
        self._waiting: list[np.ndarray] = []
        self._ends = array("q")
        self._documents = self._tokens = self._bytes = self._written = 0

    def add(self, document: Document, tokens: np.ndarray) -> None:
        """Append one document and its end token."""
        self._waiting += [tokens, self._end]
        self._tokens += len(tokens) + 1
        self._ends.append(self._tokens)
        if isinstance(document.content, bytes):
            self._bytes += len(document.content)
        elif self._bytes_per_token is not None:
            self._bytes += int(self._bytes_per_token[tokens].sum())
        if self._tokens - self._written > _BUFFER_TOKENS:
            self._write()

    def finish(self) -> ShardSplit:
        """Write the buffered tokens and return the sizes and hashes."""
        self._write()
        self._counts += self._own
        for file in self._files:
            file.flush()
        table = self._bytes_per_token
        return ShardSplit(
            documents=self._documents,
            bytes=self._bytes,
            tokens=self._tokens,
            token_bytes=0 if table is None else int(self._own @ table),
            sha256=self._hash.hexdigest(),
            ends_sha256=self._ends_hash.hexdigest(),
        )

    def _write(self) -> None:
        if not self._waiting:
            return
        joined = np.concatenate(self._waiting, dtype=self._type, casting="unsafe")
        self._waiting.clear()
        self._written = self._tokens
        self._documents += len(self._ends)
        self._own += np.bincount(joined, minlength=len(self._own))
        self._hash.update(joined.data)
        self._files[0].write(joined.data)
        ends = np.array(self._ends, "<i8")
        self._ends_hash.update(ends.data)
        self._files[1].write(ends.data)
        self._ends = array("q")


def _batches(input_shard: InputShard, corrupt: _Losses) -> Iterator[list[Document]]:
    batch, size = [], 0
    for document in input_shard.documents():
        if isinstance(document, Corrupt):
            corrupt.add(document)
            continue
        batch.append(document)
        size += len(document.content)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokens(batch: list[Document], tokenizer: Tokenizer) -> list[np.ndarray | None]:
    texts = [document.content for document in batch if isinstance(document.content, bytes)]
    encoded = iter(tokenizer.encode(texts)) if texts else iter(())
    return [next(encoded) if isinstance(d.content, bytes) else d.content for d in batch]


def _not_utf8(document: Document) -> str:
    assert isinstance(document.content, bytes)
    try:
        document.content.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 (at byte {error.start:,} of the document)"
    raise AssertionError(f"the tokenizer refused {document.name}, which is UTF-8")


def _check_ids(document: Document, tokens: np.ndarray, tokenizer: Tokenizer) -> None:
    if isinstance(document.content, bytes) or not len(tokens):
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= tokenizer.vocab_size:
        raise UserError(
            f"{document.name} holds the token {low if low < 0 else high}, but the tokenizer {tokenizer.name} has "
            f"tokens from 0 to {tokenizer.vocab_size - 1}; name the tokenizer that produced these tokens."
        )
