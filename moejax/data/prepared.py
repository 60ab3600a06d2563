"""Read a prepared set: a folder of token shards and the manifest that describes them, on disk or in an object store."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from fsspec.implementations.dirfs import DirFileSystem
from jaxtyping import Int, Int32

from moejax.data.shard import SPLITS, TokenShard, token_type
from moejax.data.tokenizer import Tokenizer, open_tokenizer
from moejax.errors import UserError
from moejax.folder import atomic_write
from moejax.storage import open_storage, reaching
from moejax.stored import Damaged, Missing, parse_json, read_bytes, read_json, write_json
from moejax.wording import some

T = TypeVar("T")

MANIFEST = "manifest.json"
CHECKED = ".checked.json"
SHARDS = "shards"
LAYOUTS = "layouts"

_THREADS = 16


@dataclass(frozen=True)
class TokenizerName:
    """Tokenizer that produced the tokens; its file, if any, is stored next to the manifest."""

    name: str
    sha256: str
    vocab_size: int
    end_of_document: int


@dataclass(frozen=True)
class SplitTotals:
    """Size of one split, summed over all shards."""

    documents: int
    bytes: int
    tokens: int
    token_bytes: int


def summed(kind: type[T], parts: Sequence[Any]) -> T:
    """Sum dataclasses of numbers field by field."""
    return kind(*(sum(getattr(part, one.name) for part in parts) for one in fields(kind)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class CorruptRecords:
    """Records that were skipped."""

    records: int
    bytes: int
    named: tuple[str, ...]
    """The first skipped records, each with the reason."""


@dataclass(frozen=True)
class Manifest:
    """Contents of a prepared set. The manifest is written last; a folder without it is not prepared."""

    source: str
    sha256: str
    """SHA-256 of the digests of all documents, in order."""
    tokenizer: TokenizerName
    unigram_entropy: float
    """Entropy of the token frequencies over the whole set, in nats per token."""
    train: SplitTotals
    validation: SplitTotals
    corrupt: CorruptRecords
    shards: tuple[TokenShard, ...]


REMEDY = "remove it, and repair the set by running moejax data prepare with the same settings and --out"
"""Remedy for an unreadable file of a set."""


def read_counts(path: Path, vocab_size: int, tokens: int) -> Int[np.ndarray, " vocab_size"]:
    """Read the number of occurrences of each token from ``counts.npy``.

    Raises:
      Damaged: the file is not a valid array of counts.
    """
    try:
        counts = np.load(io.BytesIO(read_bytes(path, remedy=REMEDY)), allow_pickle=False)
        wrong = (
            ""
            if counts.shape == (vocab_size,) and counts.dtype == np.int64
            else "it does not hold this set's token counts"
        )
        wrong = wrong or (
            "" if counts.min() >= 0 and counts.sum() == tokens else f"its counts do not sum to {tokens:,}"
        )
    # NumPy raises many kinds of exceptions for a file that is not its own.
    except Exception as error:
        if isinstance(error, Damaged):
            raise
        counts, wrong = np.zeros(0, np.int64), "it is not a complete NumPy array"
    if wrong:
        raise Damaged(f"{path} cannot be read: {wrong}; {REMEDY}.")
    return counts


@dataclass(frozen=True)
class StoredTokens:
    """Token files in an object store."""

    storage: DirFileSystem
    url: str
    sizes: Mapping[str, int]
    """Size of each file in bytes, keyed by file name."""


class PreparedSet:
    """A prepared set opened for reading; files are read when needed. With ``stored``, the token files are in an object
    store and the other files in the folder.
    """

    def __init__(self, folder: Path, stored: StoredTokens | None = None):
        try:
            self.manifest: Manifest = read_json(folder / MANIFEST, Manifest, remedy=REMEDY)
        except Missing:
            raise UserError(
                f"{folder} holds no prepared set; make one with moejax data prepare SOURCE --out {folder}."
            ) from None
        self.folder, self.stored = folder, stored

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that produced the tokens."""
        return open_tokenizer(self.manifest.tokenizer.name, self.folder)

    @functools.cached_property
    def frequencies(self) -> np.ndarray:
        """Return Float64 (vocab_size): each token's share of all tokens of both splits."""
        split = self.manifest.train, self.manifest.validation
        tokens = sum(one.tokens for one in split)
        counts = read_counts(self.folder / "counts.npy", self.manifest.tokenizer.vocab_size, tokens)
        return counts / tokens

    def split(self, name: str) -> TokenStream:
        """Return the split ``train`` or ``validation``.

        Raises:
          UserError: a shard is missing or has another length.
        """
        return TokenStream(self, name)

    def bytes_of(self, tokens: np.ndarray) -> float | None:
        """Return the number of text bytes of validation tokens, or None if unknown. If the tokenizer changes text, this
        is an estimate from the split's average.
        """
        table, split = self.tokenizer.bytes_per_token(), self.manifest.validation
        if table is None or not split.token_bytes:
            return None
        return float(table[tokens].sum()) * split.bytes / split.token_bytes

    def verify(self) -> list[str]:
        """Return the names of shard files whose hashes have changed."""
        return _wrong(self._hashes())

    def check_content(self, place: Path) -> None:
        """Check the hashes before training; files unchanged since their last check are not read again.

        Checked files are recorded with size and modification time in ``.checked.json`` in the set's folder, or in
        ``place`` if the folder is read-only.

        Raises:
          UserError: a file has changed.
        """
        known = {**_read_checked(place), **_read_checked(self.folder)}
        files = self._hashes()
        changed = {path: sha256 for path, sha256 in files.items() if known.get(path.name) != _identity(path, sha256)}
        wrong = _wrong(changed)
        if wrong:
            raise UserError(
                f"{len(wrong)} files of {self.folder} have changed since they were written: {some(wrong, most=3)}. "
                "Remove them and run moejax data prepare with the same settings to write them again."
            )
        if changed:
            remember_checked(self.folder, files, place)

    def _hashes(self) -> dict[Path, str]:
        """Return the recorded hashes of the set's files, keyed by path. Tokens in an object store are left out, because
        checking them would read all of them.
        """
        return {
            path: sha256
            for shard in self.manifest.shards
            for path, sha256 in shard_hashes(self.folder, shard).items()
            if self.stored is None or path.suffix != ".tokens"
        }


def shard_hashes(folder: Path, shard: TokenShard) -> dict[Path, str]:
    """Return the recorded hashes of a shard's files, keyed by path. ``folder`` is that of the set."""
    hashes = {}
    for name in SPLITS:
        split = getattr(shard, name)
        hashes[folder / SHARDS / f"{shard.stem}.{name}.tokens"] = split.sha256
        # Sets of older versions have no hash of document ends.
        if split.ends_sha256:
            hashes[folder / SHARDS / f"{shard.stem}.{name}.ends"] = split.ends_sha256
    return hashes


def remember_checked(folder: Path, files: Mapping[Path, str], place: Path | None = None) -> None:
    """Record that these files of the set in ``folder`` have the given hashes."""
    identities = {path.name: _identity(path, sha256) for path, sha256 in files.items()}
    for where in (folder, place):
        if where is not None:
            with contextlib.suppress(OSError):
                return write_json(where / CHECKED, {**_read_checked(where), **identities})
    return None


def _read_checked(folder: Path) -> dict[str, list[Any]]:
    try:
        return read_json(folder / CHECKED, dict[str, list], remedy="")
    # Without the record, files are compared again.
    except Damaged:
        return {}


def _identity(path: Path, sha256: str) -> list[Any]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return []
    return [stat.st_size, stat.st_mtime_ns, sha256]


def _wrong(files: Mapping[Path, str]) -> list[str]:
    with ThreadPoolExecutor(_THREADS) as threads:
        hashes = list(threads.map(_sha256, files))
    return [path.name for (path, known), now in zip(files.items(), hashes, strict=True) if now != known]


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


class TokenStream:
    """A stream of the tokens of one split, shard after shard: memory-mapped, or read from an object store on demand."""

    def __init__(self, prepared: PreparedSet, split: str):
        folder, manifest = prepared.folder / SHARDS, prepared.manifest
        self._folder, self._split = prepared.folder, split
        self._type = token_type(manifest.tokenizer.vocab_size)
        sizes = [(getattr(shard, split), folder / f"{shard.stem}.{split}") for shard in manifest.shards]
        self._shards = [(counts, path) for counts, path in sizes if counts.tokens]
        self.stored = prepared.stored
        for counts, path in self._shards:
            _check_size(path.with_name(f"{path.name}.tokens"), counts.tokens * self._type.itemsize, prepared)
            _check_size(path.with_name(f"{path.name}.ends"), counts.documents * 8, prepared)
        self._starts = np.cumsum([0] + [counts.tokens for counts, _ in self._shards])
        self._maps: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> Int32[np.ndarray, " tokens"]:
        """Return the Int32 tokens ``start`` … ``stop`` - 1."""
        parts = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop and shard < len(self._shards):
            first, last = int(self._starts[shard]), int(self._starts[shard + 1])
            parts.append(self._piece(shard, start - first, min(stop, last) - first).astype(np.int32))
            start, shard = last, shard + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, np.int32)])

    def ends(self) -> list[Int[np.ndarray, " _"]]:
        """Return, per shard, the position after the last token of each document, counted from the start of the
        stream."""
        return [
            np.fromfile(path.with_name(f"{path.name}.ends"), "<i8") + start
            for (_, path), start in zip(self._shards, self._starts[:-1], strict=True)
        ]

    def kept(self, name: str, make: Callable[[], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        """Return arrays that ``make`` derives from the document ends. They are cached under ``name``, which must
        identify all other inputs.

        The set's folder stores the arrays, so ``make`` is called once, and all processes of a machine share the
        memory-mapped files. If the folder is read-only, every process calls ``make``.
        """
        shards = json.dumps([[path.name, counts.documents, counts.tokens] for counts, path in self._shards])
        mark = hashlib.sha256(shards.encode()).hexdigest()[:16]
        record = self._folder / LAYOUTS / f"{self._split}.{name}.{mark}.json"
        # NumPy raises ValueError for a truncated file.
        with contextlib.suppress(Damaged, OSError, ValueError):
            return self._mapped(record)
        arrays = make()
        with contextlib.suppress(OSError, UserError):
            record.parent.mkdir(exist_ok=True)
            hashes = {}
            for path, array in zip(_numbered(record, len(arrays)), arrays, strict=True):
                with atomic_write(path) as partial, partial.open("wb") as file:
                    np.save(file, array, allow_pickle=False)
                hashes[path.name] = str(_sha256(path))
            write_json(record, hashes)
        return arrays

    def _mapped(self, record: Path) -> tuple[np.ndarray, ...]:
        by_name = read_json(record, dict[str, str], remedy="")
        # The record's checksum does not cover the order of its names.
        paths = _numbered(record, len(by_name))
        if {path.name for path in paths} != set(by_name):
            raise Damaged(f"{record} does not list its own files.")
        hashes = {path: by_name[path.name] for path in paths}
        known = _read_checked(self._folder)
        changed = {path: sha256 for path, sha256 in hashes.items() if known.get(path.name) != _identity(path, sha256)}
        if _wrong(changed):
            raise Damaged(f"{record} lists files that have changed since they were written.")
        if changed:
            remember_checked(self._folder, changed)
        return tuple(np.load(path, mmap_mode="r", allow_pickle=False) for path in hashes)

    def _piece(self, shard: int, start: int, stop: int) -> np.ndarray:
        if self.stored is None:
            return self._map(shard)[start:stop]
        path, size = f"{SHARDS}/{self._shards[shard][1].name}.tokens", self._type.itemsize
        with reaching(f"{self.stored.url}/{path}"):
            piece = self.stored.storage.cat_file(path, start=start * size, end=stop * size)
        return np.frombuffer(piece, self._type)

    def _map(self, shard: int) -> np.ndarray:
        if shard not in self._maps:
            path = self._shards[shard][1]
            self._maps[shard] = np.memmap(path.with_name(f"{path.name}.tokens"), self._type, "r")
        return self._maps[shard]


def _numbered(record: Path, count: int) -> list[Path]:
    return [record.with_suffix(f".{number}.npy") for number in range(count)]


def _check_size(path: Path, size: int, prepared: PreparedSet) -> None:
    """Raise ``UserError`` if a file is missing or has another size. Tokens may be in an object store."""
    stored = prepared.stored if path.suffix == ".tokens" else None
    if stored is None:
        where, size_now = str(path), path.stat().st_size if path.exists() else None
        remedy = f"repair the set by running moejax data prepare with the same settings and --out {prepared.folder}"
    else:
        where, size_now = f"{path.name} in {stored.url}", stored.sizes.get(path.name)
        remedy = "copy the prepared set there again"
    if size_now != size:
        state = "is missing" if size_now is None else f"has {size_now:,} bytes instead of {size:,}"
        raise UserError(f"{where} {state}; {remedy}.")


def open_stored_set(url: str, folder: Path) -> PreparedSet:
    """Open the set at ``url`` in an object store, and copy everything except the tokens to ``folder``.

    Manifest, tokenizer, counts and document ends are copied. Existing copies of this set are kept.

    Raises:
      UserError: the store cannot be reached, or there is no prepared set at ``url``.
    """
    storage = open_storage(url)
    with reaching(url):
        try:
            told = storage.cat_file(MANIFEST)
        except FileNotFoundError:
            raise UserError(
                f"{url} holds no prepared set; prepare a set on this machine with moejax data prepare, and copy its "
                "folder to the store."
            ) from None
        manifest: Manifest = parse_json(told, Manifest, f"{url}/{MANIFEST}", remedy="copy the prepared set there again")
        is_copied = (folder / MANIFEST).is_file() and (folder / MANIFEST).read_bytes() == told

        def copy(name: str) -> None:
            place = folder / name
            if not (is_copied and place.exists()):
                place.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(place) as partial:
                    storage.get_file(name, str(partial))

        splits = [f"{SHARDS}/{shard.stem}.{split}" for shard in manifest.shards for split in SPLITS]
        files = storage.fs.find(f"{storage.path}/{SHARDS}", detail=True)
        sizes = {Path(path).name: about["size"] for path, about in dict(files).items()}
        with ThreadPoolExecutor(_THREADS) as threads:
            beside = [name for name in ("counts.npy", "tokenizer.json") if storage.exists(name)]
            list(threads.map(copy, [*beside, *(f"{split}.ends" for split in splits)]))
        with atomic_write(folder / MANIFEST) as partial:
            partial.write_bytes(told)
    return PreparedSet(folder, StoredTokens(storage, url, sizes))
