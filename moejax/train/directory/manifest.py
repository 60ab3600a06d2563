"""Find the checkpoints of a training run, and verify their files by SHA-256.

A checkpoint is valid if Orbax has committed it. After the commit, each process hashes its files in the background and
records them in the checkpoint's ``manifest-PROCESS.json``. Only ``moejax status --verify`` and other readers of whole
checkpoints compare these hashes. A training run that resumes relies on Orbax.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax import stored
from moejax.folder import sha256
from moejax.stored import Damaged, Unreadable
from moejax.train.directory.metrics import VALIDATION_LOSS
from moejax.wording import says, told

PHASE, STEP = "phase", "step"
"""Metadata keys for the phase and step of a state."""

COMMITTED = "_CHECKPOINT_METADATA"
"""File that Orbax completes before it moves a checkpoint to its final path."""

DAMAGED = "damaged"
"""Folder for checkpoints that could not be restored, next to the folders of the phases."""

_THREADS = 8
_REMOVAL_SECONDS = 1.0


def is_committed(folder: Path) -> bool:
    """Return whether Orbax has committed a checkpoint. A checkpoint with hashes was committed, even if Orbax's file is
    missing.

    A file system without atomic renames of folders, such as a mounted bucket, may keep an incomplete folder if a
    process dies during the move.
    """
    moving = any(name.startswith(f"{folder.name}.orbax-checkpoint-tmp") for name in _names(folder.parent))
    return not moving and ((folder / COMMITTED).exists() or any(folder.glob("manifest-*.json")))


def finished_steps(folder: Path) -> list[int]:
    """Return the steps of a phase's committed checkpoints, in order."""
    return sorted(int(name) for name in _names(folder) if name.isdecimal() and is_committed(folder / name))


def finished_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of a training run's committed checkpoints, sorted by phase name, then by step."""
    phases = [folder / "checkpoints" / name for name in _names(folder / "checkpoints") if name != DAMAGED]
    return [phase / str(step) for phase in phases for step in finished_steps(phase)]


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint from Orbax's file, keyed by name, such as ``PHASE`` and ``STEP``.

    Raises:
      Damaged: the file cannot be read, or its step or phase differs from the path's.
    """
    path = checkpoint / "metadata" / "metadata"
    remedy = "resume the training run, which starts from the previous checkpoint"
    metadata = stored.foreign_json(stored.read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy)
    saved, here = (metadata.get(PHASE), metadata.get(STEP)), (checkpoint.parent.name, int(checkpoint.name))
    if None not in saved and saved != here:
        raise Damaged(f"it was saved as step {saved[1]} of {saved[0]}, and was moved or copied.")
    return metadata


def committed_at(checkpoint: Path) -> float:
    """Return the Unix time at which Orbax committed a checkpoint; infinity if the file with this time is missing."""
    path = checkpoint / COMMITTED
    content = path.read_bytes() if path.exists() else b"{}"
    saved = stored.foreign_json(content, path, shape=dict, remedy="remove this file; a manifest replaces it")
    return (saved.get("commit_timestamp_nsecs") or math.inf) / 1e9


def validation_losses(folder: Path) -> dict[int, float]:
    """Return the readable validation losses of a phase's committed checkpoints, keyed by step."""
    losses = {}
    for step in finished_steps(folder):
        # A checkpoint may be removed meanwhile.
        with contextlib.suppress(Damaged):
            if isinstance(loss := read_metadata(folder / str(step)).get(VALIDATION_LOSS), float):
                losses[step] = loss
    return losses


def files_of(checkpoint: Path) -> list[str]:
    """Return the names of a checkpoint's files, without the manifests."""
    paths = [Path(place) / name for place, _, names in os.walk(checkpoint) for name in names]
    return sorted(path.relative_to(checkpoint).as_posix() for path in paths if "manifest-" not in path.name)


def hash_files(
    checkpoint: Path, names: Iterable[str], read: Callable[[int], None] = lambda size: None
) -> dict[str, str]:
    """Return the SHA-256 of a checkpoint's files, keyed by name. ``read`` is called after each read with the number of
    bytes.
    """
    names = list(names)
    with ThreadPoolExecutor(_THREADS) as threads:
        hashes = list(threads.map(lambda name: sha256(checkpoint / name, read), names))
    return dict(zip(names, hashes, strict=True))


def write_hashes(checkpoint: Path, process: int, processes: int, stop: threading.Event) -> None:
    """Record the hashes of the files that a process wrote; record nothing if ``stop`` is set before all are hashed.

    Errors are ignored, because a checkpoint is valid without hashes.
    """

    def check(size: int) -> None:
        if stop.is_set():
            raise CancelledError

    own = [name for name in files_of(checkpoint) if _writer(name, processes) == process]
    with contextlib.suppress(OSError, CancelledError):
        if own and is_committed(checkpoint):
            hashes = hash_files(checkpoint, own, check)
            records = {name: {"bytes": (checkpoint / name).stat().st_size, "sha256": hashes[name]} for name in own}
            stored.write_json(checkpoint / f"manifest-{process}.json", records)


def read_hashes(checkpoint: Path) -> dict[str, str]:
    """Return the recorded hashes of a checkpoint's files, keyed by name.

    Raises:
      Damaged: a manifest cannot be read.
    """
    manifests = sorted(checkpoint.glob("manifest-*.json"))
    remedy = "the files that it lists cannot be checked"
    parts = [stored.read_json(path, dict[str, dict], remedy=remedy) for path in manifests]
    return {name: record["sha256"] for part in parts for name, record in part.items() if record.get("sha256")}


def damage(checkpoint: Path, hashes: Mapping[str, str] | None = None) -> str | None:
    """Read all files of a checkpoint and return a description of the first error, or None. ``hashes`` supplies the
    current hashes of the files if they have already been computed.

    Raises:
      OSError, Unreadable: the system cannot read a file.
    """
    try:
        read_metadata(checkpoint)
        known = read_hashes(checkpoint)
        now = hash_files(checkpoint, known) if hashes is None else hashes
    except Unreadable:
        raise
    except Damaged as error:
        return told(error).rstrip(".")
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    wrong = [name for name, expected in known.items() if now.get(name) != expected]
    return f"{wrong[0]} differs from what was written" if wrong else None


@dataclass(frozen=True)
class Verified:
    """Results of comparing a training run's checkpoints with their hashes."""

    checkpoints: int
    bytes: int
    without_hash: int
    """Number of files without a recorded hash, which cannot be compared."""
    damaged: tuple[tuple[Path, str], ...]
    """Folder and first error of each damaged checkpoint."""
    unreadable: tuple[str, ...]
    """Checkpoints that the system could not read, each as ``FOLDER: REASON``. They may be intact."""


def verify(folder: Path) -> Verified:
    """Read every committed checkpoint of a training run and compare it with its hashes. Checkpoints that a running
    training removes during verification are omitted.
    """
    damaged, unreadable = [], []
    count = size = without = 0
    for place in finished_checkpoints(folder):
        wrong = why = None
        try:
            wrong = damage(place)
            hashed = [] if wrong else list(read_hashes(place))
            size += sum((place / name).stat().st_size for name in hashed)
            without += 0 if wrong else len(files_of(place)) - len(hashed)
        except FileNotFoundError as error:
            wrong = f"{error.filename} is missing"
        except (OSError, Unreadable) as error:
            why = told(error) if isinstance(error, Unreadable) else f"{error.filename}: {says('the system', error)}"
        if wrong or why:
            time.sleep(_REMOVAL_SECONDS)
            if not is_committed(place):
                continue
        count += 1
        damaged += [(place, wrong)] if wrong else []
        unreadable += [f"{place}: {why}"] if why else []
    return Verified(count, size, without, tuple(damaged), tuple(unreadable))


def _writer(name: str, processes: int) -> int:
    # Orbax uses ``ocdbt.process_N`` and ``process_N``; the first process writes all other files.
    numbers = [part.rpartition("process_")[2] for part in name.split("/") if "process_" in part]
    return int(numbers[0]) if numbers and numbers[0].isdecimal() and int(numbers[0]) < processes else 0


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.is_dir() else []
