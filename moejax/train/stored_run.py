"""A training whose folder is in an object store: it works in a folder of this machine, which is copied to the store.

Orbax writes to the working folder, since its release 0.12 cannot write to ``s3://``. So a checkpoint counts here as
soon as it does in any folder, and a restart on this machine goes on from it, whatever part of it has reached the store.
A thread looks at the folder and sends what has changed, in an order that keeps a training's rules in the store too:
checkpoints that are no part of the log any more are removed first; then go settings, log and attempts, which tell of
every checkpoint that was there before; then checkpoints, each by its files, their manifests and, last, the file by
which Orbax commits; then rows. A checkpoint in the store counts if that file is there.

Who had the lock last has all that is in the store, and perhaps more. So a machine that had it last goes on from its own
folder, and so does one after which nobody trained: of whose checkpoints, rows and log the store has what it sent. Any
other replaces what it has by what is in the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from fsspec.implementations.dirfs import DirFileSystem

from moejax.errors import UserError
from moejax.folder import WRITTEN, only_writer
from moejax.storage import open_storage, reaching
from moejax.stored import check_writable, read_json, write_json
from moejax.train.identity import TRAINING
from moejax.train.manifest import COMMITTED, is_committed, wrong_size
from moejax.train.store_lock import BEAT_SECONDS, LEASE_SECONDS, LOCKS, StoreLock, TakenOver, lock_numbers, read_holder
from moejax.wording import says, told

STORE = ".store.json"
"""In a working folder: of which store it is the copy, as of which number of the lock, and what of it was sent."""

_LEFT_HERE = ("data", "profile")
"""Folders that stay on the machine: tokens are made again, or read from a prepared set."""

_STEP = re.compile(r"(?P<phase>(?:.*/)?checkpoints/[^/]+)/(?P<step>[0-9]+)/.+")
_ROW = re.compile(r"(?:.*/)?branch-[0-9]+\.json")
_LOG = re.compile(r"(?:.*/)?metrics\.jsonl")
_RECORD = re.compile(r".*/manifest-[0-9]+\.json")
_PARTIAL = re.compile(r"\.[0-9]+\..*")
"""Name of a file that is being written, as ``moejax.folder.atomic_write`` has it."""

_SECONDS_BETWEEN_PASSES = 2.0

_TRIES = 3

_THREADS = 16

_SMALL_BYTES = 2**23
"""A log that is larger is sent before a checkpoint or a row, and not at every pass."""

_NO_NUMBER = -1

_KNOWN = {"url": str, "number": int, "sent": dict[str, list[int]]}


def default_folder(url: str) -> Path:
    """Where a training in a store works on this machine if nothing else is said."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    place = given if given.is_absolute() else Path.home() / ".cache"
    return place / "moejax" / "runs" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]


def check_shared(folder: Path, number: int) -> None:
    """Raise ``UserError`` if this process does not see the working folder that the first process opened."""
    path = folder / STORE
    known = read_json(path, _KNOWN, remedy="remove the folder") if path.exists() else {"number": _NO_NUMBER}
    if known["number"] != number:
        raise UserError(
            f"{folder} is not the folder that process 0 works in: with a store as --out, processes on several machines "
            f"need a disk that all of them see. Name a folder on one with --local, or mount the store as --out."
        )


class StoredRun:
    """The copy in a store of one working folder, for as long as its lock is held.

    Raises:
      UserError: the store cannot be reached or written to, or another process writes there; or the working folder is
        something else.
    """

    def __init__(self, url: str, folder: Path, log: Callable[[str], None] = lambda text: None):
        self._url, self._folder, self._log = url.rstrip("/"), folder, log
        self._storage = open_storage(self._url)
        self._lock = StoreLock(self._storage, self._url, log)
        self._sent: dict[str, list[int]] = {}
        """Of every file in the store the size, time of change and inode that it had here when it was sent; empty where
        that is not known."""
        self._over = threading.Event()
        self._failing = False
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._keep_sending, self._beat)]

    @property
    def number(self) -> int:
        """Of the lock."""
        return self._lock.number

    def __enter__(self) -> StoredRun:
        check_writable(self._folder)
        known = self._known()
        previous = self._lock.acquire()
        try:
            with reaching(self._url):
                self._take(known, previous)
        except BaseException:
            with contextlib.suppress(Exception):
                self._lock.release()
            raise
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Send the rest, and give the lock back."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        try:
            self._send_rest()
        except UserError as problem:
            if kind is None or not issubclass(kind, Exception):
                raise
            self._log(told(problem))

    def send(self, *, all_of_it: bool = False) -> None:
        """Bring the store to what the folder is now; a large log only with a checkpoint or a row, or with all of it."""
        self._lock.check()
        # Rows are looked for before checkpoints, and these before the log: what is sent of the one is told of in what
        # is sent of the next, whatever is written meanwhile.
        rows = list(self._files(_ROW))
        steps = self._steps()
        gone = {step for path in self._sent if (step := _step_of(path))} - set(steps)
        newest = {step.parent: int(step.name) for step in steps}
        rewound = {step for step in gone if int(step.name) > newest.get(step.parent, -1)}
        for step in rewound:
            self._remove_step(step)
        large = all_of_it or any(map(self._is_changed, [*rows, *(f"{step}/{COMMITTED}" for step in steps)]))
        others = [path for path in self._files() if not _ROW.fullmatch(path)]
        self._send_files(path for path in others if large or not self._is_large(path))
        for step in steps:
            self._send_step(step)
        self._send_files(rows)
        for step in gone - rewound:
            self._remove_step(step)
        self._remove(path for path in [*self._sent] if not _step_of(path) and not (self._folder / path).exists())

    def _known(self) -> dict[str, Any] | None:
        """What is known of the folder since it was used last; None if it never was.

        Raises:
          UserError: it is something else than a copy of this training.
        """
        path = self._folder / STORE
        if not path.exists() and not any(self._folder.iterdir()):
            return None
        remedy = f"remove {self._folder}, or name another folder of this machine with --local"
        known = read_json(path, _KNOWN, remedy=remedy) if path.exists() else {"url": "nothing in a store"}
        if known["url"] != self._url:
            raise UserError(f"{self._folder} is the copy of {known['url']}, and not of {self._url}; {remedy}.")
        return known

    def _take(self, known: dict[str, Any] | None, previous: int) -> None:
        """Make the working folder the newest there is."""
        sizes = {path: size for path, size in _found(self._storage).items() if not path.startswith(f"{LOCKS}/")}
        found = list(sizes)
        committed = {step for path in found if path.endswith(f"/{COMMITTED}") and (step := _step_of(path))}
        counts = [path for path in found if _step_of(path) in {None, *committed}]
        # A folder that was being replaced is nothing to go on from.
        own = known if known is not None and known["number"] != _NO_NUMBER else None
        is_last = own is not None and own["number"] == previous
        if own is not None and (is_last or _is_as_left(own["sent"], {path: sizes[path] for path in counts})):
            if not is_last:
                self._log(f"Another process had {self._url} since, and trained nothing: {self._folder} goes on.")
            # What another process wrote beside is written anew.
            sent = {path: own["sent"].get(path, []) for path in counts}
            self._sent = {path: what if what[:1] == [sizes[path]] else [] for path, what in sent.items()}
            self._note()
            for step in committed & set(self._steps()):
                if wrong_size(self._folder / step):
                    shutil.rmtree(self._folder / step)
                    self._fetch(path for path in counts if _step_of(path) == step)
        else:
            self._replace(counts)
        if not (self._folder / TRAINING).exists():
            # What stays on a machine belongs to no training then, and would be in the way of the next.
            for name in _LEFT_HERE:
                shutil.rmtree(self._folder / name, ignore_errors=True)
        # What was begun and not committed.
        self._remove(set(found) - set(counts))
        self._note()

    def _replace(self, found: Sequence[str]) -> None:
        """Put what is in the store in place of what is here."""
        write_json(self._folder / STORE, {"url": self._url, "number": _NO_NUMBER, "sent": {}})
        here = [path for path in self._folder.iterdir() if path.name not in (*_LEFT_HERE, STORE)]
        if here:
            self._log(f"{self._folder} is replaced by what is in {self._url}, where another process has gone on.")
        for path in here:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if any(map(_step_of, found)):
            self._log(f"Fetching {self._url} to {self._folder}.")
        self._fetch(found)

    def _fetch(self, paths: Iterable[str]) -> None:
        def fetch(path: str) -> None:
            self._sent[path] = _as_sent(_download(self._storage, path, self._folder))

        _in_parallel(fetch, paths)

    def _files(self, pattern: re.Pattern[str] | None = None) -> Iterator[str]:
        """Files of the folder that belong in the store, checkpoints apart."""
        for place, folders, names in os.walk(self._folder):
            at = PurePosixPath(Path(place).relative_to(self._folder).as_posix())
            left = ("checkpoints", *(_LEFT_HERE if Path(place) == self._folder else ()))
            folders[:] = sorted(set(folders) - {*left})
            for name in sorted(names):
                path = str(at / name)
                # Locks, and what is being written, begin with a dot.
                if (not name.startswith(".") or name == WRITTEN) and (pattern is None or pattern.fullmatch(path)):
                    yield path

    def _steps(self) -> list[PurePosixPath]:
        """Checkpoints of the folder that count, as paths below it; of a phase in order."""
        phases = [Path(place) for place, _, _ in os.walk(self._folder) if Path(place).parent.name == "checkpoints"]
        steps = [path for phase in phases for path in phase.iterdir() if path.name.isdigit() and is_committed(path)]
        found = [PurePosixPath(path.relative_to(self._folder).as_posix()) for path in steps]
        return sorted(found, key=lambda step: (str(step.parent), int(step.name)))

    def _send_files(self, paths: Iterable[str]) -> None:
        changed = [path for path in paths if self._is_changed(path)]
        if changed:
            # Here too, and not once a pass: an array may take minutes, and what comes next may make it count.
            self._lock.check()
            _in_parallel(self._send_file, changed)
            self._note()

    def _send_step(self, step: PurePosixPath) -> None:
        """Send what has changed of a checkpoint; all of it, if more has than its manifests."""
        every = [path for path in (self._folder / step).rglob("*") if path.is_file() and not _PARTIAL.match(path.name)]
        names = [path.relative_to(self._folder).as_posix() for path in every]
        records = [name for name in names if _RECORD.fullmatch(name)]
        contents = [name for name in names if name not in records]
        if any(map(self._is_changed, contents)):
            # Of a step that was taken again, parts of the one and of the other would be neither.
            self._remove_step(step)
            last = f"{step}/{COMMITTED}"
            self._send_files(name for name in contents if name != last)
            self._send_files(records)
            # Otherwise it was removed here while it was sent.
            if set(contents) - {last} <= set(self._sent) and is_committed(self._folder / step):
                self._send_files([last])
        else:
            self._send_files(records)

    def _is_changed(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._sent.get(path) != _as_sent(self._folder / path)
        return False

    def _is_large(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / path).stat().st_size > _SMALL_BYTES
        return False

    def _send_file(self, path: str) -> None:
        place = self._folder / path
        try:
            as_sent = _as_sent(place)
            if as_sent[0] <= _SMALL_BYTES:
                self._storage.pipe_file(path, place.read_bytes())
            else:
                self._storage.put_file(str(place), path)
        except FileNotFoundError:
            if place.exists():
                raise
            # Orbax or the training has removed it meanwhile.
            return
        self._sent[path] = as_sent

    def _remove_step(self, step: PurePosixPath) -> None:
        paths = [path for path in self._sent if _step_of(path) == step]
        self._remove([path for path in paths if path.endswith(f"/{COMMITTED}")])
        self._remove(paths)

    def _remove(self, paths: Iterable[str]) -> None:
        def remove(path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._storage.rm_file(path)
            self._sent.pop(path, None)

        every = list(paths)
        _in_parallel(remove, every)
        if every:
            self._note()

    def _note(self) -> None:
        write_json(self._folder / STORE, {"url": self._url, "number": self._lock.number, "sent": dict(self._sent)})

    def _keep_sending(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_PASSES):
            self._try(self.send)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            self._try(self._lock.beat)

    def _try(self, work: Callable[[], None]) -> None:
        """What cannot be done now is tried again, and said once; who has lost the lock stops as if asked to."""
        try:
            work()
            self._failing = False
        except TakenOver as problem:
            self._over.set()
            self._log(told(problem))
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:
            if not self._failing:
                self._log(f"{self._url} cannot be written to now ({says('the store', error)}); it is tried again.")
            self._failing = True

    def _send_rest(self) -> None:
        for number in itertools.count(1):
            try:
                self.send(all_of_it=True)
                self._lock.release()
                return
            except UserError:
                raise
            except Exception as error:
                if number == _TRIES:
                    raise UserError(
                        f"{self._url} cannot be written to ({says('the store', error)}). What was trained is whole in "
                        f"{self._folder}: the same command on this machine sends it."
                    ) from error
                time.sleep(_SECONDS_BETWEEN_PASSES)


@contextlib.contextmanager
def small_files(url: str, folder: Path) -> Iterator[None]:
    """While this lasts, ``folder`` holds what tells how a training in a store stands: all but the checkpoints' arrays.

    Raises:
      UserError: the store cannot be reached, or holds no training there.
    """
    storage = open_storage(url)
    with reaching(url):
        found = _found(storage)
        if TRAINING not in {path.rpartition("/")[2] for path in found}:
            raise UserError(f"{url} holds no training; start one with moejax train --config=FILE.py --out {url}.")

        def fetch(path: str) -> None:
            place = _download(storage, path, folder)
            if place.name == COMMITTED:
                written = storage.modified(path).timestamp()
                os.utime(place, (written, written))

        _in_parallel(fetch, filter(_is_small, found))
        is_written = _is_written(storage)
    with only_writer(folder) if is_written else contextlib.nullcontext():
        yield


def _download(storage: DirFileSystem, path: str, folder: Path) -> Path:
    """Copy a file of a store to its place in ``folder``."""
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    storage.get_file(path, str(place))
    return place


def _is_small(path: str) -> bool:
    if _step_of(path) is None:
        return not path.startswith((f"{LOCKS}/", "programs/"))
    return path.endswith((f"/{COMMITTED}", "/metadata/metadata")) or bool(_RECORD.fullmatch(path))


def _is_written(storage: DirFileSystem) -> bool:
    """Whether a process holds the lock of a store: by the store's clock and ours, if it is one of another machine."""
    last = max(lock_numbers(storage), default=0)
    holder = read_holder(storage, last) if last else None
    if holder is None or holder.is_gone:
        return False
    return holder.is_here or time.time() - storage.modified(f"{LOCKS}/{last}").timestamp() < LEASE_SECONDS


def _in_parallel(work: Callable[[str], None], paths: Iterable[str]) -> None:
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(work, paths))


def _step_of(path: str) -> PurePosixPath | None:
    """The checkpoint that a file is of."""
    match = _STEP.fullmatch(path)
    return PurePosixPath(match["phase"], match["step"]) if match else None


def _as_sent(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _found(storage: DirFileSystem) -> dict[str, int]:
    """Every file in a store's folder, and its bytes; none if there is no such folder."""
    if not storage.exists(""):
        return {}
    every: Any = storage.find("", detail=True)
    return {str(path).lstrip("/"): about["size"] for path, about in every.items()}


def _is_as_left(sent: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> bool:
    """Whether of checkpoints, rows and log a store has what was sent, by names and sizes; ``sizes`` without what was
    begun and not committed."""

    committed = {_step_of(path) for path in sent if path.endswith(f"/{COMMITTED}")}

    def counts(path: str) -> bool:
        return bool(_step_of(path) in committed or _ROW.fullmatch(path) or _LOG.fullmatch(path))

    trained = {path: size for path, size in sizes.items() if _step_of(path) or counts(path)}
    return trained == {path: what[0] for path, what in sent.items() if what and counts(path)}
