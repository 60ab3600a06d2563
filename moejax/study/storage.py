"""Read from a study's storage its identity and the record of launches."""

from __future__ import annotations

import time
from collections.abc import Mapping
from os import PathLike
from typing import Any

from moejax.errors import UserError
from moejax.storage import open_storage, read_text
from moejax.stored import parse_json, sealed

REMEDY = "bring back a copy, or give the study's config with --config and another --out"
"""Remedy for a ``study.json`` or ``analysis.json`` that cannot be read."""


def identity(url: str | PathLike[str]) -> dict[str, Any]:
    """Return the identity of the study in a local or remote folder, which determines its runs.

    Raises:
      UserError: the folder holds no study, or cannot be reached.
    """
    text = read_text(open_storage(url), "study.json")
    if text is None:
        raise UserError(f"{url} holds no study; start one with moejax study --config=FILE.py.")
    return parse_json(text, dict, f"{url}/study.json", remedy=REMEDY)


LAUNCHES = "launches.jsonl"
"""Log of launches: the engine, and its id of each task."""


def write_launch(study: str | PathLike[str], engine: str, ids: Mapping[str, str]) -> None:
    """Append a launch with the engine's id of each task, by model."""
    storage = open_storage(study)
    line = sealed({"engine": engine, "at": time.time(), "ids": dict(ids)}, indent=None)
    storage.pipe_file(LAUNCHES, ((read_text(storage, LAUNCHES) or "") + line).encode())


def launched(study: str | PathLike[str], engine: str) -> dict[str, str]:
    """Return an engine's latest id of each task, by model."""
    lines = (read_text(open_storage(study), LAUNCHES) or "").splitlines()
    ids: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        where = f"Line {number} of {study}/{LAUNCHES}"
        remedy = "bring back a copy, or remove the line and check by hand what it handed over"
        launch = parse_json(line, {"engine": str, "ids": dict[str, str]}, where, remedy=remedy)
        if launch["engine"] == engine:
            ids |= launch["ids"]
    return ids
