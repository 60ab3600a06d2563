"""Storage of a study: a folder of this machine, or any other that fsspec reaches (``gs://``, ``s3://``); launch log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from os import PathLike
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from moejax.errors import UserError
from moejax.stored import Damaged, parse_json, sealed
from moejax.wording import says

REMEDY = "bring back a copy, or give the study's config with --config and another --out"
"""What can be done about a ``study.json`` or ``analysis.json`` that cannot be read."""


def is_remote(url: str | PathLike[str]) -> bool:
    """Whether storage is not a path of this machine."""
    return "://" in str(url)


def open_storage(url: str | PathLike[str]) -> DirFileSystem:
    """The file system whose root is that folder.

    Raises:
      UserError: no such protocol, the package that speaks it is not installed, or the store does not let us in.
    """
    try:
        system, root = fsspec.core.url_to_fs(str(url))
        system.exists(root)
    # Every store's client has exceptions of its own.
    except Exception as error:
        raise UserError(
            f"{url} cannot be reached from here ({says('the store', error)}); give a folder, or mend that."
        ) from error
    return DirFileSystem(root, system)


def read_text(storage: DirFileSystem, path: str) -> str | None:
    """A file's text, or None if there is none."""
    try:
        check_regular(storage, path)
        return storage.cat_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def check_regular(storage: DirFileSystem, path: str) -> None:
    """Raise ``Damaged`` if there is a pipe or the like in a file's place: reading it would wait for who writes it."""
    # Object stores hold nothing of that kind, and would be asked once more for every file.
    if isinstance(storage.fs, LocalFileSystem) and storage.info(path)["type"] == "other":
        raise Damaged(f"{path} is no regular file; remove it, or bring back a copy.")


def identity(url: str | PathLike[str]) -> dict[str, Any]:
    """What decides the runs of the study that a folder, here or elsewhere, belongs to.

    Raises:
      UserError: the folder belongs to none, or cannot be reached.
    """
    text = read_text(open_storage(url), "study.json")
    if text is None:
        raise UserError(f"{url} holds no study; start one with moejax study --config=FILE.py.")
    return parse_json(text, dict, f"{url}/study.json", remedy=REMEDY)


def matching(storage: DirFileSystem, pattern: str) -> list[str]:
    """Paths that match ``models/*/*.json``, in order."""
    return sorted(map(str, storage.glob(pattern)))


LAUNCHES = "launches.jsonl"
"""Log of what of a study was handed to which engine, and what the engine calls it."""


def write_launch(study: str | PathLike[str], engine: str, ids: Mapping[str, str]) -> None:
    """Add a launch: what the engine calls each task, by model."""
    storage = open_storage(study)
    line = sealed({"engine": engine, "at": time.time(), "ids": dict(ids)}, indent=None)
    storage.pipe_file(LAUNCHES, ((read_text(storage, LAUNCHES) or "") + line).encode())


def launched(study: str | PathLike[str], engine: str) -> dict[str, str]:
    """What an engine called each task when it was handed over last, by model."""
    lines = (read_text(open_storage(study), LAUNCHES) or "").splitlines()
    ids: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        where = f"Line {number} of {study}/{LAUNCHES}"
        remedy = "bring back a copy, or remove the line and check by hand what it handed over"
        launch = parse_json(line, {"engine": str, "ids": dict[str, str]}, where, remedy=remedy)
        if launch["engine"] == engine:
            ids |= launch["ids"]
    return ids
