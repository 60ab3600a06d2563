"""Record sizes and SHA-256 hashes of a checkpoint's files, after Orbax's commit.

A checkpoint counts once it is committed. Each process then writes the sizes of its own files, without reading them, to
``manifest-PROCESS.json``. In the background, it replaces that file by one with hashes. If a process dies in between,
the checkpoint is still used, and files without a record are not checked. A process that restores it records the missing
hashes, marked as hashed later: such a hash describes what was restored, not what was written.

A checkpoint is damaged if and only if a file is missing or differs from its record. System read errors are raised
instead, because they say nothing about the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

from moejax import stored
from moejax.folder import sha256
from moejax.stored import Damaged, Missing, Unreadable
from moejax.wording import says, told

VALIDATION_LOSS = "validation_loss"
"""Metadata key of an evaluated state."""

PHASE, STEP = "phase", "step"
"""Metadata keys for the phase and step of a state."""

COMMITTED = "_CHECKPOINT_METADATA"
"""File that Orbax completes before it moves a checkpoint to its final path."""

_PARTS = ("state", "metadata", COMMITTED, "commit_success.txt")
"""Files that Orbax and a training put into a checkpoint, apart from records."""

_TEMPORARY = ".orbax-checkpoint-tmp"
"""Orbax's suffix of uncommitted folders."""

_RECORD = re.compile(r"manifest.*\.json")

_LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class FileRecord:
    """Record of one file of a checkpoint."""

    bytes: int
    sha256: str | None = None
    """SHA-256; None until the file is hashed."""
    later: bool = False
    """True if the file was hashed when it was restored, not when it was written."""


Manifest = Mapping[str, FileRecord]
"""File records by path relative to the checkpoint's folder."""


def part_name(process: int) -> str:
    """Return the name of the file in which a process records its own files."""
    return f"manifest-{process}.json"


def is_committed(folder: Path) -> bool:
    """Return whether Orbax has committed a checkpoint.

    A checkpoint counts as committed if its commit file or a manifest exists. If a folder cannot be renamed atomically
    (an object store mounted as a file system), the temporary folder remains when a process dies during the move.

    Raises:
      OSError: the folder cannot be read.
    """
    return _is_committed(folder, _names(folder.parent))


def is_part(name: str) -> bool:
    """Return whether a file name in a checkpoint's folder is one that a training or Orbax uses."""
    return name in _PARTS or name.startswith("manifest") or _TEMPORARY in name


def has_all_hashes(folder: Path) -> bool:
    """Return whether every file of a checkpoint has a recorded hash.

    Raises:
      Damaged: a record is invalid.
      OSError, Unreadable: the system cannot read a record.
    """
    manifest = read_manifest(folder)
    return bool(manifest) and all(file.sha256 for file in manifest.values())


def finished_steps(folder: Path) -> list[int]:
    """Return the steps of a phase's committed checkpoints, in order.

    Raises:
      OSError: the folder cannot be read.
    """
    names = _names(folder)
    return sorted(int(name) for name in names if name.isdecimal() and _is_committed(folder / name, names))


def saved_beside(folder: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint, from Orbax's file.

    Raises:
      Damaged: it cannot be read.
    """
    path = folder / "metadata" / "metadata"
    remedy = "go on with the training, which takes the checkpoint before it"
    return stored.foreign_json(stored.read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy)


def validation_losses(folder: Path) -> dict[int, float]:
    """Return the validation losses of a phase's committed checkpoints, by step. Checkpoints with damaged metadata are
    skipped; restoring them reports the error.

    Raises:
      OSError, Unreadable: the system cannot read the checkpoints.
    """
    found = {}
    for step in finished_steps(folder):
        try:
            if isinstance(loss := saved_beside(folder / str(step)).get(VALIDATION_LOSS), float):
                found[step] = loss
        except Unreadable:
            raise
        # This includes missing files: a checkpoint may be removed while others are read.
        except Damaged:
            pass
    return found


def write_sizes(folder: Path, process: int = 0, processes: int = 1, known: Manifest | None = None) -> None:
    """Record the sizes of the files that this process wrote, except those with a ``known`` hash. A known size is
    kept."""
    known = known or {}
    names = [path.relative_to(folder).as_posix() for path in _own(folder, process, processes)]
    files = {
        name: known.get(name) or FileRecord((folder / name).stat().st_size)
        for name in names
        if name not in known or known[name].sha256 is None
    }
    if files:
        _write(folder, process, {**_part(folder, process), **files})


def write_hashes(folder: Path, process: int = 0, stop: threading.Event | None = None, *, later: bool = False) -> None:
    """Record hashes of the files with sizes recorded by this process; record nothing if ``stop`` is set meanwhile."""
    part = _part(folder, process)
    names = [name for name, file in part.items() if file.sha256 is None]
    hashes = _sha256_of([folder / name for name in names], stop)
    if names and all(hashes):
        now = {name: FileRecord(part[name].bytes, hash, later) for name, hash in zip(names, hashes, strict=True)}
        _write(folder, process, {**part, **now})


def read_manifest(folder: Path) -> Manifest:
    """Return the merged records of all processes, preferring those with a hash; empty if there are none.

    Raises:
      Damaged: a record is invalid.
      OSError, Unreadable: the system cannot read a record.
    """
    found: dict[str, FileRecord] = {}
    for part in (folder / name for name in _names(folder) if _RECORD.fullmatch(name)):
        found |= {name: file for name, file in _read(part).items() if file.sha256 or name not in found}
    return found


def wrong_size(folder: Path) -> str | None:
    """Describe the first error in a checkpoint's path and its files' presence and sizes; None if there is none.

    Raises:
      OSError, Unreadable: the system cannot read the checkpoint.
    """
    try:
        known = read_manifest(folder)
    except Unreadable:
        raise
    except Damaged as error:
        return f"it cannot be read ({told(error)})"
    with ThreadPoolExecutor(_threads()) as threads:
        sizes = list(threads.map(lambda name: _size(folder / name), known))
    for (name, file), size in zip(known.items(), sizes, strict=True):
        if size != file.bytes:
            return f"{name} is not there" if size is None else f"{name} has {size:,} of {file.bytes:,} bytes"
    return _misplaced(folder)


def _misplaced(folder: Path) -> str | None:
    """Describe the mismatch if a checkpoint was saved as another step or phase than its path says."""
    try:
        beside = saved_beside(folder)
    except Unreadable:
        raise
    except Damaged:
        # Restoring the checkpoint reports this error.
        return None
    saved = beside.get(PHASE), beside.get(STEP)
    # A checkpoint that was moved aside has another name.
    if None in saved or not folder.name.isdecimal() or saved == (folder.parent.name, int(folder.name)):
        return None
    return f"it was saved as step {saved[1]} of {saved[0]}, and was moved or copied"


def hashes_of(folder: Path, names: Sequence[str], read: Callable[[int], None] | None = None) -> dict[str, str]:
    """Return the SHA-256 of files of a checkpoint, by name; ``read`` is called with the number of bytes read.

    Raises:
      OSError: the system cannot read a file.
    """
    found = _sha256_of([folder / name for name in names], read=read)
    return {name: content for name, content in zip(names, found, strict=True) if content is not None}


def files_of(folder: Path) -> list[str]:
    """Return the names of a checkpoint's files, without its records."""
    return sorted(path.relative_to(folder).as_posix() for path in _files(folder))


def damage(folder: Path, found: Mapping[str, str] | None = None) -> str | None:
    """Read all files of a checkpoint and describe the first error; None if there is none. ``found`` supplies known
    hashes.

    Raises:
      OSError, Unreadable: the system cannot read all of it.
    """
    if wrong := wrong_size(folder):
        return wrong
    manifest = read_manifest(folder)
    if found is None:
        try:
            found = hashes_of(folder, [name for name, file in manifest.items() if file.sha256])
        except FileNotFoundError as error:
            return f"{error.filename} is not there"
    return _differing(manifest, found)


def _differing(manifest: Manifest, found: Mapping[str, str]) -> str | None:
    wrong = [name for name, file in manifest.items() if file.sha256 and name in found and found[name] != file.sha256]
    return f"{wrong[0]} has other content than was written" if wrong else None


@dataclass(frozen=True)
class Verified:
    """Results of comparing a training's checkpoints with their hashes."""

    checkpoints: int
    bytes: int
    without_hash: int
    """Number of files without a recorded hash, which cannot be compared."""
    hashed_later: int
    """Number of files hashed only when the checkpoint was restored."""
    damaged: tuple[tuple[Path, str], ...]
    """Folders of damaged checkpoints, each with its error."""
    unreadable: tuple[str, ...]
    """Folders that the system could not read, with the reason; their integrity is unknown."""


def verify(folder: Path) -> Verified:
    """Read every committed checkpoint of a training's folder and compare it with its manifest.

    A running training removes checkpoints; removed ones are omitted.

    Raises:
      OSError: the system cannot list them.
    """
    checkpoints, damaged, unreadable = folder / "checkpoints", [], []
    count = size = without = later = 0
    for phase in (checkpoints / name for name in _names(checkpoints) if name != "damaged"):
        for place in (phase / str(step) for step in finished_steps(phase)):
            wrong = why = None
            hashed: Manifest = {}
            try:
                wrong = damage(place)
                hashed = {} if wrong else {name: file for name, file in read_manifest(place).items() if file.sha256}
            except (Missing, FileNotFoundError) as error:
                wrong = in_words(error)
            except (OSError, Unreadable) as error:
                why = in_words(error)
            if (wrong or why) and _is_removed(place):
                continue
            count += 1
            damaged += [(place, wrong)] if wrong else []
            unreadable += [f"{place}: {why}"] if why else []
            if not wrong and not why:
                size += sum(file.bytes for file in hashed.values() if not file.later)
                later += sum(file.later for file in hashed.values())
                without += max(0, len(_files(place)) - len(hashed))
    return Verified(count, size, without, later, tuple(damaged), tuple(unreadable))


def in_words(error: OSError | Damaged) -> str:
    """Return the file that the system could not read, and the reason."""
    if isinstance(error, Damaged):
        return str(error).rstrip(".")
    return (f"{error.filename}: " if error.filename else "") + says("the system", error)


def _is_removed(folder: Path) -> bool:
    """Return whether a checkpoint is gone or being removed: then its number of files decreases at every look."""
    count = _count(folder)
    while count:
        time.sleep(_LOOK_AGAIN_SECONDS)
        before, count = count, _count(folder)
        if count == before:
            return False
    return True


class Hashing:
    """Background hashing of the files that this process wrote to checkpoints, one checkpoint at a time.

    The training does not wait for it. At the end, a single process finishes pending hashes; one of several processes
    does so after leaving the group. A process that fails or is asked to stop cancels them.
    """

    def __init__(self, process: int = 0, processes: int = 1):
        self._process, self._processes = process, processes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hashing")
        self._jobs: dict[Path, tuple[threading.Event, Future[None]]] = {}

    def begin(self, folder: Path, *, again: bool = False) -> None:
        """Hash a committed checkpoint with recorded sizes. With ``again``, also record files that dead processes did
        not."""
        if folder not in self._jobs or self._jobs[folder][1].done():
            stop = threading.Event()
            self._jobs[folder] = (stop, self._thread.submit(self._hash, folder, stop, again))

    def drop(self, folders: Sequence[Path]) -> None:
        """Cancel hashing of checkpoints that may be removed; nothing more is written to them."""
        jobs = [self._jobs.pop(folder) for folder in folders if folder in self._jobs]
        for stop, _ in jobs:
            stop.set()
        for _, job in jobs:
            # A job that is still queued is cancelled without waiting.
            if not job.cancel():
                job.exception()

    def under_way(self) -> list[Path]:
        """Return the checkpoints for which hashing was begun, in order."""
        return list(self._jobs)

    def __enter__(self) -> Hashing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is not None:
            self.drop(self.under_way())
        self._thread.shutdown(wait=self._processes == 1)

    def _hash(self, folder: Path, stop: threading.Event, again: bool) -> None:
        # Errors do not matter here, because the checkpoint counts without hashes. A full disk raises at the next save,
        # and damaged records raise when the checkpoint is used. The checkpoint may also have been removed since.
        with contextlib.suppress(OSError, Damaged):
            if again:
                write_sizes(folder, self._process, self._processes, read_manifest(folder))
            write_hashes(folder, self._process, stop, later=again)


_Part = dict[str, FileRecord]


def _write(folder: Path, process: int, files: Manifest) -> None:
    stored.write_json(folder / part_name(process), {name: vars(file) for name, file in files.items()})


def _part(folder: Path, process: int) -> _Part:
    part = folder / part_name(process)
    return _read(part) if part.exists() else {}


def _read(part: Path) -> _Part:
    return stored.read_json(part, _Part, remedy="the files that it describes cannot be checked.")


def _own(folder: Path, process: int, processes: int) -> list[Path]:
    """Return the files of one process: Orbax uses ``ocdbt.process_N`` and ``process_N``; all others are the first's."""
    owners = {f"{kind}process_{number}": number for number in range(processes) for kind in ("", "ocdbt.")}

    def owner(path: Path) -> int:
        return next((owners[part] for part in path.relative_to(folder).parts if part in owners), 0)

    return [path for path in sorted(_files(folder)) if owner(path) == process]


def _files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint, without its records."""
    every = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [path for path in every if not _is_record(path, folder)]


def _count(folder: Path) -> int:
    """Count all files below a folder, including the records."""
    return sum(len(names) for _, _, names in os.walk(folder))


def _is_record(path: Path, folder: Path) -> bool:
    """Return whether a file is a manifest, possibly a partially written one."""
    return path.parent == folder and "manifest" in path.name


def _is_committed(folder: Path, beside: Sequence[str]) -> bool:
    is_there = any(name == COMMITTED or _RECORD.fullmatch(name) for name in _names(folder))
    return is_there and not any(name.startswith(f"{folder.name}{_TEMPORARY}") for name in beside)


def _names(folder: Path) -> list[str]:
    """Return the sorted names in a folder; empty if it does not exist. ``Path.glob`` would hide read errors, and its
    contents would seem lost."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: Path) -> int | None:
    """Return the size of a file; None if it does not exist."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _threads() -> int:
    return min(16, max(4, os.cpu_count() or 1))


def _sha256_of(
    paths: Sequence[Path], stop: threading.Event | None = None, read: Callable[[int], None] | None = None
) -> list[str | None]:
    # One of several processes may still hash when the interpreter exits. Executors accept no work then, and Python 3.12
    # starts no more threads.
    try:
        threads = ThreadPool(_threads())
    except RuntimeError:
        return [_sha256(path, stop, read) for path in paths]
    with threads:
        return threads.map(lambda path: _sha256(path, stop, read), paths, chunksize=1)


def _sha256(path: Path, stop: threading.Event | None = None, read: Callable[[int], None] | None = None) -> str | None:
    """Return the SHA-256 of a file; None if stopped."""

    def reading(size: int) -> None:
        if stop is not None and stop.is_set():
            raise _Stopped
        if read is not None:
            read(size)

    with contextlib.suppress(_Stopped):
        return sha256(path, reading)
    return None


class _Stopped(Exception):
    pass
