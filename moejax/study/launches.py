"""``launches.jsonl``: what of a study was handed to which engine, and what the engine calls it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from os import PathLike

from moejax.study.place import open_place, read_text

LAUNCHES = "launches.jsonl"


def write_launch(study: str | PathLike[str], engine: str, ids: Mapping[str, str]) -> None:
    """Add a launch: what the engine calls each task, by model."""
    place = open_place(study)
    line = json.dumps({"engine": engine, "at": time.time(), "ids": dict(ids)})
    place.pipe_file(LAUNCHES, ((read_text(place, LAUNCHES) or "") + line + "\n").encode())


def launched(study: str | PathLike[str], engine: str) -> dict[str, str]:
    """What an engine called each task when it was handed over last, by model."""
    lines = (read_text(open_place(study), LAUNCHES) or "").splitlines()
    found: dict[str, str] = {}
    for launch in map(json.loads, lines):
        if launch["engine"] == engine:
            found |= launch["ids"]
    return found
