"""The manifest of a checkpoint: size and SHA-256 of each of its files. A checkpoint without one is not finished."""

from __future__ import annotations

import contextlib
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from moejax.folder import write_json

MANIFEST = "manifest.json"

VALIDATION_LOSS = "validation_loss"
"""What is saved beside a state that was measured."""

_THREADS = 4


def write_manifest(folder: Path) -> None:
    """Describe the files of a checkpoint that is whole; afterwards, and not before, it is finished."""
    write_json(folder / MANIFEST, _files(folder))


def is_finished(folder: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    return (folder / MANIFEST).is_file()


def finished_steps(folder: Path) -> list[int]:
    """The steps of the finished checkpoints of a leg, in order."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit() and is_finished(path))


def validation_losses(folder: Path) -> dict[int, float]:
    """Those of a leg's finished checkpoints that were measured, by step."""
    found = {}
    for step in finished_steps(folder):
        # Orbax keeps plain data in this file; a checkpoint may be removed while others are read.
        with contextlib.suppress(OSError):
            about = json.loads((folder / str(step) / "about" / "metadata").read_text())
            if VALIDATION_LOSS in about:
                found[step] = float(about[VALIDATION_LOSS])
    return found


def damage(folder: Path) -> str | None:
    """What is wrong with the files of a finished checkpoint, in words; None if nothing is."""
    try:
        known = json.loads((folder / MANIFEST).read_text())
        if not known:
            return f"{MANIFEST} is empty"
        # Sizes cost nothing, and most damage shows in them.
        for name, file in known.items():
            size = (folder / name).stat().st_size if (folder / name).is_file() else None
            if size != file["bytes"]:
                return f"{name} is not there" if size is None else f"{name} has {size:,} of {file['bytes']:,} bytes"
        found = _files(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"
    wrong = [name for name in known if found[name] != known[name]]
    return f"{wrong[0]} has other content than was written" if wrong else None


def _files(folder: Path) -> dict[str, dict[str, int | str]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor(_THREADS) as threads:
        hashes = list(threads.map(_sha256, paths))
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": found}
        for path, found in zip(paths, hashes, strict=True)
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
