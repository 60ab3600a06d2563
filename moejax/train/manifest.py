"""Sizes and SHA-256 of a checkpoint's files, written beside them after Orbax's commit.

The commit alone decides that a checkpoint counts. Afterwards each process writes the sizes of its own files at once
(nothing is read for it) into ``manifest-PROCESS.json`` and, in the background, replaces that file by one with hashes.
A checkpoint whose process died in between is used all the same; what is not recorded is not checked. Whoever restores
it records the rest, marked as hashed later: such a hash tells what was restored, and not what was written.

A checkpoint is damaged if a file is missing or has other bytes than were recorded, and nothing else is damage: where
the system cannot read something, that is raised, and nothing is known of the checkpoint.
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
"""What is saved beside a state that was measured."""

PHASE, STEP = "phase", "step"
"""What is saved beside a state: of which phase and step it is."""

COMMITTED = "_CHECKPOINT_METADATA"
"""Orbax fills this file in before it moves a checkpoint to its place."""

_PARTS = ("state", "metadata", COMMITTED, "commit_success.txt")
"""What Orbax and a training put into a checkpoint, beside records."""

_TEMPORARY = ".orbax-checkpoint-tmp"
"""Orbax's suffix of what is not committed."""

_RECORD = re.compile(r"manifest.*\.json")

_LOOK_AGAIN_SECONDS = 0.5


@dataclass(frozen=True)
class FileRecord:
    """What is known of a file of a checkpoint."""

    bytes: int
    sha256: str | None = None
    """None until it is hashed."""
    later: bool = False
    """Whether it was hashed by who restored it, and not by who wrote it."""


Manifest = Mapping[str, FileRecord]
"""By path below the checkpoint's folder."""


def part_name(process: int) -> str:
    """Name of the file in which a process records its own files."""
    return f"manifest-{process}.json"


def is_committed(folder: Path) -> bool:
    """Whether Orbax has brought a checkpoint to its place, all of it.

    One of which files are recorded was there, whatever is missing now. Where a folder is not renamed in one step (an
    object store mounted as a file system), the temporary one is still beside it when a process dies on the way.

    Raises:
      OSError: the system cannot tell.
    """
    return _is_committed(folder, _names(folder.parent))


def is_part(name: str) -> bool:
    """Whether something in a checkpoint's folder is called as a training or Orbax calls it."""
    return name in _PARTS or name.startswith("manifest") or _TEMPORARY in name


def has_all_hashes(folder: Path) -> bool:
    """Whether a hash is on record for every file of a checkpoint.

    Raises:
      Damaged: a record holds something else than was written.
      OSError, Unreadable: the system cannot read one.
    """
    manifest = read_manifest(folder)
    return bool(manifest) and all(file.sha256 for file in manifest.values())


def finished_steps(folder: Path) -> list[int]:
    """The steps of the committed checkpoints of a phase, in order.

    Raises:
      OSError: the system cannot tell.
    """
    names = _names(folder)
    return sorted(int(name) for name in names if name.isdigit() and _is_committed(folder / name, names))


def saved_beside(folder: Path) -> dict[str, Any]:
    """What a training saved beside the state of a checkpoint, in Orbax's file.

    Raises:
      Damaged: it cannot be read.
    """
    path = folder / "metadata" / "metadata"
    remedy = "go on with the training, which takes the checkpoint before it"
    return stored.foreign_json(stored.read_bytes(path, remedy=remedy), path, shape=dict, remedy=remedy)


def validation_losses(folder: Path) -> dict[int, float]:
    """Those of a phase's committed checkpoints that were measured, by step. What is damaged counts as not measured:
    whoever restores that checkpoint says what is wrong with it.

    Raises:
      OSError, Unreadable: the system cannot tell.
    """
    found = {}
    for step in finished_steps(folder):
        try:
            if isinstance(loss := saved_beside(folder / str(step)).get(VALIDATION_LOSS), float):
                found[step] = loss
        except Unreadable:
            raise
        # Among them one that is missing: a checkpoint may be removed while others are read.
        except Damaged:
            pass
    return found


def write_sizes(folder: Path, process: int = 0, processes: int = 1, known: Manifest | None = None) -> None:
    """Record the sizes of the files that this process wrote, but of those whose hash is ``known``. A size that is known
    stays what it was."""
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
    """Record hashes of the files whose sizes this process has recorded; nothing, if ``stop`` is set on the way."""
    part = _part(folder, process)
    names = [name for name, file in part.items() if file.sha256 is None]
    hashes = _sha256_of([folder / name for name in names], stop)
    if names and all(hashes):
        now = {name: FileRecord(part[name].bytes, hash, later) for name, hash in zip(names, hashes, strict=True)}
        _write(folder, process, {**part, **now})


def read_manifest(folder: Path) -> Manifest:
    """What all processes recorded of a checkpoint, with a hash where any of them has one; empty if none did.

    Raises:
      Damaged: a record holds something else than was written.
      OSError, Unreadable: the system cannot read one.
    """
    found: dict[str, FileRecord] = {}
    for part in (folder / name for name in _names(folder) if _RECORD.fullmatch(name)):
        found |= {name: file for name, file in _read(part).items() if file.sha256 or name not in found}
    return found


def wrong_size(folder: Path) -> str | None:
    """What a look at its place and the presence and sizes of its files finds wrong with a checkpoint, in words; None
    if nothing.

    Raises:
      OSError, Unreadable: the system cannot tell.
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
    """Whether a checkpoint was saved as that of another step or phase than its place says, in words."""
    try:
        beside = saved_beside(folder)
    except Unreadable:
        raise
    except Damaged:
        # Whoever restores it says so.
        return None
    saved = beside.get(PHASE), beside.get(STEP)
    # One that was set aside has another name.
    if None in saved or not folder.name.isdigit() or saved == (folder.parent.name, int(folder.name)):
        return None
    return f"it was saved as step {saved[1]} of {saved[0]}, and was moved or copied"


def hashes_of(folder: Path, names: Sequence[str], read: Callable[[int], None] | None = None) -> dict[str, str]:
    """The SHA-256 of files of a checkpoint, by their names; ``read`` is told of the bytes as they are read.

    Raises:
      OSError: the system cannot read one.
    """
    found = _sha256_of([folder / name for name in names], read=read)
    return {name: content for name, content in zip(names, found, strict=True) if content is not None}


def files_of(folder: Path) -> list[str]:
    """The names of a checkpoint's files, without the records of them."""
    return sorted(path.relative_to(folder).as_posix() for path in _files(folder))


def damage(folder: Path, found: Mapping[str, str] | None = None) -> str | None:
    """What is wrong with a checkpoint, every file of it read, in words; None if nothing is. ``found`` has the hashes
    of all files, where they are known.

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
    """What the hashes of a training's checkpoints say of them."""

    checkpoints: int
    bytes: int
    without_hash: int
    """Files of which no hash was recorded, so that nothing can be compared."""
    hashed_later: int
    """Files whose hash tells only that they are as they were when the checkpoint was restored."""
    damaged: tuple[str, ...]
    """Folders of checkpoints and what is wrong with each."""
    unreadable: tuple[str, ...]
    """Those that the system could not read, and why: whether they are whole is not known."""


def verify(folder: Path) -> Verified:
    """Read every committed checkpoint of a training's folder, and compare it with its manifest.

    A training that runs removes checkpoints: one that is no longer there is left out.

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
            damaged += [f"{place}: {wrong}"] if wrong else []
            unreadable += [f"{place}: {why}"] if why else []
            if not wrong and not why:
                size += sum(file.bytes for file in hashed.values() if not file.later)
                later += sum(file.later for file in hashed.values())
                without += max(0, len(_files(place)) - len(hashed))
    return Verified(count, size, without, later, tuple(damaged), tuple(unreadable))


def in_words(error: OSError | Damaged) -> str:
    """Which file the system could not read, and why."""
    if isinstance(error, Damaged):
        return str(error).rstrip(".")
    return (f"{error.filename}: " if error.filename else "") + says("the system", error)


def _is_removed(folder: Path) -> bool:
    """Whether a checkpoint is no longer there: one that is being removed has fewer files at every look."""
    count = _count(folder)
    while count:
        time.sleep(_LOOK_AGAIN_SECONDS)
        before, count = count, _count(folder)
        if count == before:
            return False
    return True


class Hashing:
    """Hashes the files that this process wrote to checkpoints, one checkpoint after another, in the background.

    Nobody waits for it: at its end a process by itself finishes what is under way, one of several does so after it has
    parted from the others, and one that fails or is asked to stop drops it.
    """

    def __init__(self, process: int = 0, processes: int = 1):
        self._process, self._processes = process, processes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hashing")
        self._jobs: dict[Path, tuple[threading.Event, Future[None]]] = {}

    def begin(self, folder: Path, *, again: bool = False) -> None:
        """Hash a checkpoint that is committed and whose sizes are recorded; ``again``: what others, now dead, have not
        recorded of it."""
        if folder not in self._jobs or self._jobs[folder][1].done():
            stop = threading.Event()
            self._jobs[folder] = (stop, self._thread.submit(self._hash, folder, stop, again))

    def drop(self, folders: Sequence[Path]) -> None:
        """Stop with checkpoints that may be removed from now on; nothing is written to them any more."""
        jobs = [self._jobs.pop(folder) for folder in folders if folder in self._jobs]
        for stop, _ in jobs:
            stop.set()
        for _, job in jobs:
            # One that waits for its turn behind another checkpoint's is not waited for.
            if not job.cancel():
                job.exception()

    def under_way(self) -> list[Path]:
        """The checkpoints that were begun, in order."""
        return list(self._jobs)

    def __enter__(self) -> Hashing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        if kind is not None:
            self.drop(self.under_way())
        self._thread.shutdown(wait=self._processes == 1)

    def _hash(self, folder: Path, stop: threading.Event, again: bool) -> None:
        # The checkpoint counts as it is. A disk that is full will say so at the next one, whoever uses a checkpoint
        # whose records are damaged at once, and one may have been removed since.
        with contextlib.suppress(OSError, Damaged):
            if again:
                write_sizes(folder, self._process, self._processes, read_manifest(folder))
            write_hashes(folder, self._process, stop, later=again)


_Part = dict[str, FileRecord]


def _write(folder: Path, process: int, files: Manifest) -> None:
    stored.write_json(folder / part_name(process), {name: vars(file) for name, file in files.items()})


def _part(folder: Path, process: int) -> _Part:
    """What one process has recorded."""
    part = folder / part_name(process)
    return _read(part) if part.exists() else {}


def _read(part: Path) -> _Part:
    return stored.read_json(part, _Part, remedy="the files that it describes cannot be checked.")


def _own(folder: Path, process: int, processes: int) -> list[Path]:
    """Orbax keeps what a process wrote in ``ocdbt.process_N`` and in files ``process_N``; the rest is the first's."""
    owners = {f"{kind}process_{number}": number for number in range(processes) for kind in ("", "ocdbt.")}

    def owner(path: Path) -> int:
        return next((owners[part] for part in path.relative_to(folder).parts if part in owners), 0)

    return [path for path in sorted(_files(folder)) if owner(path) == process]


def _files(folder: Path) -> list[Path]:
    """Of a checkpoint, without the records."""
    every = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [path for path in every if not _is_record(path, folder)]


def _count(folder: Path) -> int:
    """Of all files below a folder, the records among them."""
    return sum(len(names) for _, _, names in os.walk(folder))


def _is_record(path: Path, folder: Path) -> bool:
    """Whether a file is a manifest, or one being written."""
    return path.parent == folder and "manifest" in path.name


def _is_committed(folder: Path, beside: Sequence[str]) -> bool:
    is_there = any(name == COMMITTED or _RECORD.fullmatch(name) for name in _names(folder))
    return is_there and not any(name.startswith(f"{folder.name}{_TEMPORARY}") for name in beside)


def _names(folder: Path) -> list[str]:
    """Of what is in a folder, in order; none if there is no such folder. ``Path.glob`` would also be silent where the
    folder cannot be read, and what it holds be taken for lost."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(path: Path) -> int | None:
    """None if there is no such file."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _threads() -> int:
    return min(16, max(4, os.cpu_count() or 1))


def _sha256_of(
    paths: Sequence[Path], stop: threading.Event | None = None, read: Callable[[int], None] | None = None
) -> list[str | None]:
    # When the interpreter ends, one of several processes may still hash: an executor takes no work then, and from
    # Python 3.12 on no thread begins.
    try:
        threads = ThreadPool(_threads())
    except RuntimeError:
        return [_sha256(path, stop, read) for path in paths]
    with threads:
        return threads.map(lambda path: _sha256(path, stop, read), paths, chunksize=1)


def _sha256(path: Path, stop: threading.Event | None = None, read: Callable[[int], None] | None = None) -> str | None:
    """None if it was stopped."""

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
