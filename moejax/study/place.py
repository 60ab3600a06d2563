"""Where a study's files are: a folder of this machine, or any other place that fsspec reaches (``gs://``, ``s3://``)."""

from __future__ import annotations

from os import PathLike
from typing import Any

import fsspec
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from moejax.errors import UserError
from moejax.stored import Damaged, parse_json
from moejax.wording import says

TABLE = "runs.parquet"
"""The run table in a study's folder."""


REMEDY = "bring back a copy, or give the study's config with --config and another --out"
"""What can be done about a ``study.json`` or ``analysis.json`` that cannot be read."""


def is_remote(url: str | PathLike[str]) -> bool:
    """Whether a place is not a path of this machine."""
    return "://" in str(url)


def open_place(url: str | PathLike[str]) -> DirFileSystem:
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


def read_text(place: DirFileSystem, path: str) -> str | None:
    """A file's text, or None if there is none."""
    try:
        check_regular(place, path)
        return place.cat_file(path).decode(errors="replace")
    except FileNotFoundError:
        return None


def check_regular(place: DirFileSystem, path: str) -> None:
    """Raise ``Damaged`` if there is a pipe or the like in a file's place: reading it would wait for who writes it."""
    # Object stores hold nothing of that kind, and would be asked once more for every file.
    if isinstance(place.fs, LocalFileSystem) and place.info(path)["type"] == "other":
        raise Damaged(f"{path} is no regular file; remove it, or bring back a copy.")


def identity(url: str | PathLike[str]) -> dict[str, Any]:
    """What decides the runs of the study that a folder, here or elsewhere, belongs to.

    Raises:
      UserError: the folder belongs to none, or cannot be reached.
    """
    text = read_text(open_place(url), "study.json")
    if text is None:
        raise UserError(f"{url} holds no study; start one with moejax study --config=FILE.py.")
    return parse_json(text, dict, f"{url}/study.json", remedy=REMEDY)


def matching(place: DirFileSystem, pattern: str) -> list[str]:
    """Paths that match ``models/*/*.json``, in order."""
    return sorted(map(str, place.glob(pattern)))
