"""Read Weights & Biases runs of a project through the API, or of a folder of offline runs."""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moejax import input_file
from moejax.errors import UserError
from moejax.json_text import MOST_DEPTH
from moejax.run_sources.tracked_run import TrackedRun, library
from moejax.stored import foreign_json
from moejax.wording import says

HEADER, BLOCK = b":W&B\xe1\xbe\0", 32_768
"""First bytes of a ``.wandb`` file and its block size; the file is a LevelDB log of protobuf records."""


def is_file(path: Path) -> bool:
    """Return whether W&B stores a run in this file."""
    return path.suffix == ".wandb" and path.name.startswith("run-")


def read(text: str) -> Iterator[TrackedRun]:
    """Return the runs of a folder, or of ``ENTITY/PROJECT``.

    Raises:
      UserError: wandb is not installed, the project cannot be reached, or the folder has no runs or a damaged run.
    """
    library("wandb", "Weights & Biases runs", "wandb")
    folder = Path(text)
    if not folder.is_dir():
        return _of_project(text)
    files = sorted(path for path in folder.rglob("run-*.wandb") if not path.parent.is_symlink())
    if not files:
        raise UserError(f"{folder} has no Weights & Biases runs (files run-*.wandb).")
    return map(_of_file, files)


def _of_project(project: str) -> Iterator[TrackedRun]:
    wandb = library("wandb", "Weights & Biases runs", "wandb")
    try:
        for run in wandb.Api().runs(project, order="+created_at"):
            metrics = {name: value for name, value in dict(run.summary).items() if isinstance(value, int | float | str)}
            about = {"run_id": run.id, "status": run.state}
            yield TrackedRun(run.name, _own(run.config), _own(metrics), about, run.state == "finished")
    except Exception as error:
        raise UserError(
            f"Cannot read runs of {project} from Weights & Biases ({says('wandb', error)}). Give ENTITY/PROJECT and "
            f"run wandb login, or give a folder of offline runs."
        ) from error


def _own(values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("_") or name == "_step"}


def _of_file(path: Path) -> TrackedRun:
    from google.protobuf.message import DecodeError

    wandb_internal_pb2: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    name, key, settings, metrics, summary, code = "", "", {}, {}, {}, None
    for content in _records(path):
        try:
            record = wandb_internal_pb2.Record.FromString(content)
        except DecodeError as error:
            raise UserError(f"{path} has a record that the installed wandb cannot read; update wandb.") from error
        kind = record.WhichOneof("record_type")
        if kind == "run":
            name, key = record.run.display_name or name, record.run.run_id
            _update(settings, record.run.config.update)
        elif kind == "config":
            _update(settings, record.config.update)
        elif kind == "history":
            _update(metrics, record.history.item)
        elif kind == "summary":
            _update(summary, record.summary.update)
        elif kind == "exit":
            code = record.exit.exit_code
    status = {None: "crashed", 0: "finished"}.get(code, "failed")
    metrics = {name: value for name, value in {**metrics, **summary}.items() if isinstance(value, int | float | str)}
    about = {"run_id": key, "status": status}
    return TrackedRun(name or key or path.stem, _own(settings), _own(metrics), about, code == 0)


def _update(values: dict[str, Any], items: Any) -> None:
    """Update values from the items of a record, each with a name or a path of names, and a JSON value."""
    for item in items:
        *path, last = item.nested_key or [item.key]
        if len(path) > MOST_DEPTH:
            raise UserError(f"{last} is nested deeper than {MOST_DEPTH} levels; log it with fewer levels.")
        place = values
        for part in path:
            inner = place.setdefault(part, {})
            place = inner if isinstance(inner, dict) else place.__setitem__(part, {}) or place[part]
        place[last] = foreign_json(item.value_json, f"A value of {last}", remedy="log the run again")


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file; the last record may be missing if the run was killed.

    A part of a record has a checksum (4 bytes), a length (2 bytes), a type (1 byte: full, first, middle, last) and its
    data. No part crosses a block.
    """
    with input_file.opened(path) as file:
        if file.read(len(HEADER)) != HEADER:
            raise UserError(
                f"{path} is not a Weights & Biases file, or its format is newer than supported; move it away, or read "
                f"the runs from the server with wandb:ENTITY/PROJECT."
            )
        at, parts = len(HEADER), list[bytes]()
        while True:
            rest = BLOCK - at % BLOCK
            head = file.read(min(rest, 7))
            if rest < 7 and len(head) == rest:
                at += rest
                continue
            if len(head) < 7:
                return
            total, length, kind = struct.unpack("<IHB", head)
            data = file.read(length)
            if len(data) < length or (total, length, kind) == (0, 0, 0):
                return
            if zlib.crc32(data, zlib.crc32(bytes([kind]))) != total:
                raise UserError(f"{path} is damaged at byte {at:,}; copy it again, or move it to another folder.")
            if kind in (1, 2):
                parts.clear()
            parts.append(data)
            if kind in (1, 4):
                yield b"".join(parts)
            at += 7 + length
