"""Text to train on: the source files of the running Python's standard library, as bytes.

Every machine that can run this has them, so a first training needs no download. The corpus differs between Python
versions; its hash travels with every run.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from moejax.folder import only_writer, whole, write_json

END_OF_DOCUMENT = 256
"""The token after the last byte of a file; the byte values themselves are the other tokens."""

VOCAB_SIZE = 257

_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class Document:
    """One file: its path below the corpus' root, with forward slashes, and its bytes."""

    path: str
    text: bytes | None
    """None if the file could not be read."""


@dataclass(frozen=True)
class Split:
    """One side of the corpus."""

    files: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Corpus:
    """What a tokenised corpus is made of. Its tokens lie beside its manifest, in one ``.npy`` file per split."""

    source: str
    sha256: str
    vocab_size: int
    unigram_entropy: float
    """Entropy of a token's frequency over the whole corpus, nats per token: what a model of single bytes reaches."""
    train: Split
    validation: Split
    unreadable: tuple[str, ...]
    """Files that could not be read, left out."""


def python_stdlib() -> Iterator[Document]:
    """The ``.py`` files of this Python's standard library without its tests, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    for path in sorted(paths, key=lambda p: p.relative_to(root).as_posix()):
        try:
            text = path.read_bytes()
        except OSError:
            text = None
        yield Document(path.relative_to(root).as_posix(), text)


SOURCES: dict[str, Callable[[], Iterator[Document]]] = {"python_stdlib": python_stdlib}
"""Corpora by the name that a config gives."""


def is_validation(path: str, share: float) -> bool:
    """Whether a file is held out: decided by a hash of its path alone, so that no file is ever on both sides."""
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8]) < share * 2**64


def prepare(source: str, folder: Path, *, validation_share: float) -> Corpus:
    """Tokenise a corpus into ``folder``, or read it from there if that was done before for the same choices.

    Raises:
      ValueError: the source is unknown, or one side of the split is empty.
    """
    if source not in SOURCES:
        raise ValueError(f"data.source is {source!r}; known are {', '.join(SOURCES)}.")
    manifest = folder / "corpus.json"
    choices = {"source": source, "validation_share": validation_share}
    folder.mkdir(parents=True, exist_ok=True)
    with only_writer(folder):
        if manifest.exists() and json.loads(manifest.read_text())["choices"] == choices:
            return load(folder)
        # Without its manifest a folder holds no corpus, whichever of the arrays is there.
        manifest.unlink(missing_ok=True)
        corpus = _tokenise(source, folder, validation_share)
        write_json(manifest, {"choices": choices, **asdict(corpus)})
        return corpus


def load(folder: Path) -> Corpus:
    """The manifest of a corpus that ``prepare`` wrote."""
    saved = json.loads((folder / "corpus.json").read_text())
    saved.pop("choices")
    sides = {side: Split(**saved.pop(side)) for side in ("train", "validation")}
    return Corpus(unreadable=tuple(saved.pop("unreadable")), **sides, **saved)


def tokens(folder: Path, side: str) -> np.ndarray:
    """Tokens of one side, memory-mapped: uint16, shape (tokens,)."""
    return np.load(folder / f"{side}.npy", mmap_mode="r")


def _tokenise(source: str, folder: Path, validation_share: float) -> Corpus:
    digest = hashlib.sha256()
    sides: dict[str, list[np.ndarray]] = {"train": [], "validation": []}
    text_bytes = {"train": 0, "validation": 0}
    unreadable = []
    for document in SOURCES[source]():
        if document.text is None:
            unreadable.append(document.path)
            continue
        digest.update(document.path.encode() + b"\0" + hashlib.sha256(document.text).digest())
        side = "validation" if is_validation(document.path, validation_share) else "train"
        array = np.frombuffer(document.text, np.uint8).astype(np.uint16)
        sides[side].append(np.append(array, np.uint16(END_OF_DOCUMENT)))
        text_bytes[side] += len(document.text)
    counts = np.zeros(VOCAB_SIZE, np.int64)
    splits = {}
    for side, arrays in sides.items():
        if not arrays:
            raise ValueError(f"The {side} side of {source} has no file; change data.validation_share.")
        joined = np.concatenate(arrays)
        counts += np.bincount(joined, minlength=VOCAB_SIZE)
        with whole(folder / f"{side}.npy") as partial:
            np.save(partial, joined)
        splits[side] = Split(files=len(arrays), bytes=text_bytes[side], tokens=len(joined))
    frequency = counts[counts > 0] / counts.sum()
    return Corpus(
        source=source,
        sha256=digest.hexdigest(),
        vocab_size=VOCAB_SIZE,
        unigram_entropy=-math.fsum(frequency * np.log(frequency)),
        unreadable=tuple(unreadable),
        **splits,
    )
