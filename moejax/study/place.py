"""Where a study's files are: a folder of this machine, or any other place that fsspec reaches (``gs://``, ``s3://``)."""

from __future__ import annotations

import json
from os import PathLike
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem

TABLE = "runs.parquet"
"""The run table in a study's folder."""


def is_remote(url: str | PathLike[str]) -> bool:
    """Whether a place is not a path of this machine."""
    return "://" in str(url)


def open_place(url: str | PathLike[str]) -> DirFileSystem:
    """The file system whose root is that folder.

    Raises:
      ValueError: no such protocol, the package that speaks it is not installed, or the store does not let us in.
    """
    try:
        system, root = fsspec.core.url_to_fs(str(url))
        system.exists(root)
    # Every store's client has exceptions of its own.
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{url} cannot be reached from here ({why}); give a folder, or mend that.") from error
    return DirFileSystem(root, system)


def read_text(place: DirFileSystem, path: str) -> str | None:
    """A file's text, or None if there is none."""
    try:
        return place.cat_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def identity(url: str | PathLike[str]) -> dict[str, Any]:
    """What decides the runs of the study that a folder, here or elsewhere, belongs to.

    Raises:
      ValueError: the folder belongs to none, or cannot be reached.
    """
    text = read_text(open_place(url), "study.json")
    if text is None:
        raise ValueError(f"{url} holds no study; start one with moejax study --config=FILE.py.")
    return json.loads(text)


def matching(place: DirFileSystem, pattern: str) -> list[str]:
    """Paths that match ``models/*/*.json``, in order."""
    return sorted(map(str, place.glob(pattern)))
