"""One part of a source, tokenised: per side a file of tokens and one of where its documents end; its record last."""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from moejax.config import dump
from moejax.data.document import Corrupt, Document
from moejax.data.source import Part
from moejax.data.split import SIDES, side
from moejax.data.tokenizer import Tokenizer
from moejax.errors import UserError
from moejax.folder import whole
from moejax.stored import write_json

NAMED_CORRUPT = 20
"""Corrupt records that a shard remembers by name; it counts them all."""

_BATCH_BYTES = 2**20
_BATCH_DOCUMENTS = 512
_BUFFER_TOKENS = 2**20

Tick = Callable[[int], None]
"""Called with the bytes of text, or of tokens, done since the last call."""


@dataclass(frozen=True)
class Side:
    """What lies on one side of the split."""

    documents: int
    bytes: int
    """Of text; of documents that came as tokens, what those stand for."""
    tokens: int
    token_bytes: int
    """Bytes that the tokens stand for by the tokenizer's table; differs from ``bytes`` if it changes the text."""
    sha256: str
    """Of the file of tokens."""
    ends_sha256: str = ""
    """Of the file of documents' ends."""


@dataclass(frozen=True)
class Shard:
    """What became of one part."""

    stem: str
    """Of its files: ``STEM.train.tokens``, ``STEM.train.ends``, the same for validation, and ``STEM.counts.npy``."""
    part: str
    sha256: str
    """Of the digests of its documents, in order."""
    train: Side
    validation: Side
    corrupt: int
    corrupt_bytes: int
    corrupt_named: tuple[str, ...]


def token_type(vocab_size: int) -> np.dtype:
    """The type in which tokens are stored, little-endian."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def write_shard(part: Part, stem: str, folder: Path, tokenizer: Tokenizer, share: float, tick: Tick) -> Shard:
    """Tokenise a part into ``folder``, a batch of documents at a time.

    Raises:
      UserError: tokens of the part lie outside the tokenizer's vocabulary.
    """
    digests = hashlib.sha256()
    corrupt = _Losses()
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    with contextlib.ExitStack() as files:
        sides = {name: _Writer(name, stem, folder, tokenizer, counts, files) for name in SIDES}
        for batch in _batches(part, corrupt):
            for document, tokens in zip(batch, _tokens(batch, tokenizer), strict=True):
                if tokens is None:
                    corrupt.add(Corrupt(document.name, "no UTF-8"))
                    continue
                _check_ids(document, tokens, tokenizer)
                digest = document.digest()
                digests.update(digest)
                sides[side(document, digest, share)].add(document, tokens)
            tick(sum(len(document.content) for document in batch))
        found = {name: writer.finish() for name, writer in sides.items()}
    with whole(folder / f"{stem}.counts.npy") as partial, partial.open("wb") as file:
        np.save(file, counts)
    shard = Shard(
        stem=stem,
        part=part.name,
        sha256=digests.hexdigest(),
        corrupt=corrupt.records,
        corrupt_bytes=corrupt.bytes,
        corrupt_named=tuple(corrupt.named),
        **found,
    )
    write_json(folder / f"{stem}.json", dump(shard))
    return shard


class _Losses:
    """Counts corrupt records, and remembers the first."""

    def __init__(self):
        self.records = self.bytes = 0
        self.named: list[str] = []

    def add(self, record: Corrupt) -> None:
        """Count one more."""
        self.records += 1
        self.bytes += record.lost_bytes
        if len(self.named) < NAMED_CORRUPT:
            self.named.append(f"{record.name}: {record.why}")


class _Writer:
    """Appends documents to the files of one side."""

    def __init__(
        self, name: str, stem: str, folder: Path, tokenizer: Tokenizer, counts: np.ndarray, files: contextlib.ExitStack
    ):
        def create(suffix: str) -> BinaryIO:
            partial = files.enter_context(whole(folder / f"{stem}.{name}.{suffix}"))
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
        """One document, and the token that ends it."""
        self._waiting += [tokens, self._end]
        self._tokens += len(tokens) + 1
        self._ends.append(self._tokens)
        if isinstance(document.content, bytes):
            self._bytes += len(document.content)
        elif self._bytes_per_token is not None:
            self._bytes += int(self._bytes_per_token[tokens].sum())
        if self._tokens - self._written > _BUFFER_TOKENS:
            self._write()

    def finish(self) -> Side:
        """Write out what waits."""
        self._write()
        self._counts += self._own
        for file in self._files:
            file.flush()
        table = self._bytes_per_token
        return Side(
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


def _batches(part: Part, corrupt: _Losses) -> Iterator[list[Document]]:
    batch, size = [], 0
    for found in part.documents():
        if isinstance(found, Corrupt):
            corrupt.add(found)
            continue
        batch.append(found)
        size += len(found.content)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _tokens(batch: list[Document], tokenizer: Tokenizer) -> list[np.ndarray | None]:
    """Tokens of each document; a source holds text or tokens, not both."""
    texts = [document.content for document in batch if isinstance(document.content, bytes)]
    encoded = iter(tokenizer.encode(texts)) if texts else iter(())
    return [next(encoded) if isinstance(d.content, bytes) else d.content for d in batch]


def _check_ids(document: Document, tokens: np.ndarray, tokenizer: Tokenizer) -> None:
    if isinstance(document.content, bytes) or not len(tokens):
        return
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= tokenizer.vocab_size:
        raise UserError(
            f"{document.name} holds the token {low if low < 0 else high}, and the tokenizer {tokenizer.name} has "
            f"tokens from 0 to {tokenizer.vocab_size - 1}; name the tokenizer that these tokens were made with."
        )
