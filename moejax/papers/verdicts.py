"""Read the recorded verdicts, and compare them with computed ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

from moejax.papers.record import Record
from moejax.stored import foreign_json, read_bytes


def recorded() -> dict[str, str]:
    """Return the verdicts by ``Record.key``, as last recorded by ``moejax reproduce --record``."""
    text = (files("moejax.papers") / "verdicts.json").read_text(encoding="utf-8")
    return foreign_json(text, "verdicts.json", shape=dict[str, str], remedy="install moejax again")


def as_text(records: Iterable[Record]) -> str:
    """Return the content of ``verdicts.json`` for these records."""
    return json.dumps({record.key: record.verdict for record in records}, indent=0, ensure_ascii=False) + "\n"


def changes(records: Iterable[Record], known: Mapping[str, str]) -> list[str]:
    """Return a sentence for every verdict that differs from the recorded one, is new, or is missing."""
    now = {record.key: record for record in records}
    papers = {record.paper for record in now.values()}
    told = [
        f"{key}: the verdict was '{known[key]}' and is '{record.verdict}'. {record.explanation}"
        for key, record in now.items()
        if key in known and known[key] != record.verdict
    ]
    told += [
        f"{key}: this quantity has no verdict on record; it is '{now[key].verdict}'." for key in now.keys() - known
    ]
    gone = [key for key in known.keys() - now.keys() if key.split(" | ")[0] in papers]
    return sorted(
        told + [f"{key}: this quantity is on record as '{known[key]}' and no longer computed." for key in gone]
    )


def read_verdicts(path: Path) -> dict[str, str]:
    """Return the verdicts in a file of ``--record``, by the key of their number."""
    remedy = f"--record {path} writes a file of verdicts"
    return foreign_json(read_bytes(path, remedy=remedy), path, shape=dict[str, str], remedy=remedy)
