"""A prepared set: a folder of token shards, and the manifest that says what they are."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32

from moejax.config import build
from moejax.data.shard import Shard, token_type
from moejax.data.tokenizer import Tokenizer, open_tokenizer

MANIFEST = "manifest.json"
SHARDS = "shards"


@dataclass(frozen=True)
class TokenizerName:
    """Which tokenizer made the tokens; its file, if it has one, lies beside the manifest."""

    name: str
    sha256: str
    vocab_size: int
    end_of_document: int


@dataclass(frozen=True)
class Split:
    """One side, over all shards."""

    documents: int
    bytes: int
    tokens: int
    token_bytes: int


@dataclass(frozen=True)
class CorruptRecords:
    """What was left out."""

    records: int
    bytes: int
    named: tuple[str, ...]
    """The first of them, and why."""


@dataclass(frozen=True)
class Manifest:
    """What a prepared set holds. It is written last: a folder without it is not prepared."""

    source: str
    sha256: str
    """Of the digests of all documents, in order."""
    tokenizer: TokenizerName
    unigram_entropy: float
    """Entropy of a token's frequency over the whole set, nats per token."""
    train: Split
    validation: Split
    corrupt: CorruptRecords
    shards: tuple[Shard, ...]


class PreparedSet:
    """A prepared set, opened for reading. Nothing is read until it is asked for."""

    def __init__(self, folder: Path):
        try:
            saved = json.loads((folder / MANIFEST).read_text())
        except OSError:
            raise ValueError(
                f"{folder} holds no prepared set; make one with moejax data prepare SOURCE --out {folder}."
            ) from None
        self.folder = folder
        self.manifest = build(Manifest, saved, str(folder / MANIFEST))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the tokens were made with."""
        return open_tokenizer(self.manifest.tokenizer.name, self.folder)

    @functools.cached_property
    def frequencies(self) -> np.ndarray:
        """Float64 (vocab_size): share of each token over both sides."""
        counts = np.load(self.folder / "counts.npy")
        return counts / counts.sum()

    def side(self, name: str) -> TokenStream:
        """``train`` or ``validation``.

        Raises:
          ValueError: a shard is missing, or is not as long as it was.
        """
        return TokenStream(self, name)

    def bytes_of(self, tokens: np.ndarray, side: str = "validation") -> float | None:
        """Bytes of text that tokens stand for, on average over a side where the tokenizer changes the text; or None."""
        table = self.tokenizer.bytes_per_token()
        split: Split = getattr(self.manifest, side)
        if table is None or not split.token_bytes:
            return None
        return float(table[tokens].sum()) * split.bytes / split.token_bytes

    def verify(self) -> list[str]:
        """Files of tokens that are not what they were, by their hashes."""
        wrong = []
        for shard in self.manifest.shards:
            for side in ("train", "validation"):
                path = self.folder / SHARDS / f"{shard.stem}.{side}.tokens"
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != getattr(shard, side).sha256:
                        wrong.append(path.name)
        return wrong


class TokenStream:
    """The tokens of one side over all shards, end to end, memory-mapped."""

    def __init__(self, prepared: PreparedSet, side: str):
        folder, manifest = prepared.folder / SHARDS, prepared.manifest
        self._type = token_type(manifest.tokenizer.vocab_size)
        sizes = [(getattr(shard, side), folder / f"{shard.stem}.{side}") for shard in manifest.shards]
        self._shards = [(counts, path) for counts, path in sizes if counts.tokens]
        for counts, path in self._shards:
            check_size(path.with_name(f"{path.name}.tokens"), counts.tokens * self._type.itemsize, prepared.folder)
            check_size(path.with_name(f"{path.name}.ends"), counts.documents * 8, prepared.folder)
        self._starts = np.cumsum([0] + [counts.tokens for counts, _ in self._shards])
        self._maps: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> Int32[np.ndarray, " tokens"]:
        """Int32 tokens ``start`` … ``stop`` - 1."""
        parts = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop and shard < len(self._shards):
            first, last = int(self._starts[shard]), int(self._starts[shard + 1])
            parts.append(self._map(shard)[start - first : min(stop, last) - first].astype(np.int32))
            start, shard = last, shard + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, np.int32)])

    def ends(self) -> list[Int[np.ndarray, " _"]]:
        """Per shard, the position after the last token of each document, counted from the stream's beginning."""
        return [
            np.fromfile(path.with_name(f"{path.name}.ends"), "<i8") + start
            for (_, path), start in zip(self._shards, self._starts[:-1], strict=True)
        ]

    def _map(self, shard: int) -> np.ndarray:
        if shard not in self._maps:
            path = self._shards[shard][1]
            self._maps[shard] = np.memmap(path.with_name(f"{path.name}.tokens"), self._type, "r")
        return self._maps[shard]


def check_size(path: Path, size: int, folder: Path) -> None:
    """Raise ``ValueError`` if a file is not there, or has another size."""
    found = path.stat().st_size if path.exists() else None
    if found != size:
        state = "is missing" if found is None else f"has {found:,} bytes instead of {size:,}"
        raise ValueError(
            f"{path} {state}; make the set whole again with moejax data prepare, with the same settings and --out "
            f"{folder}."
        )
