"""``launches.jsonl``: what of a study was handed to which engine, and what the engine calls it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from os import PathLike

from moejax.stored import parse_json, sealed
from moejax.study.place import open_place, read_text

LAUNCHES = "launches.jsonl"


def write_launch(study: str | PathLike[str], engine: str, ids: Mapping[str, str]) -> None:
    """Add a launch: what the engine calls each task, by model."""
    place = open_place(study)
    line = sealed({"engine": engine, "at": time.time(), "ids": dict(ids)}, indent=None)
    place.pipe_file(LAUNCHES, ((read_text(place, LAUNCHES) or "") + line).encode())


def launched(study: str | PathLike[str], engine: str) -> dict[str, str]:
    """What an engine called each task when it was handed over last, by model."""
    lines = (read_text(open_place(study), LAUNCHES) or "").splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        where = f"Line {number} of {study}/{LAUNCHES}"
        remedy = "bring back a copy, or remove the line and check by hand what it handed over"
        launch = parse_json(line, {"engine": str, "ids": dict[str, str]}, where, remedy=remedy)
        if launch["engine"] == engine:
            found |= launch["ids"]
    return found
