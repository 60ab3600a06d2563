"""A training whose folder is in an object store: it works in a folder of this machine, which is copied to the store.

Orbax writes to the working folder, since its release 0.12 cannot write to ``s3://``. So a checkpoint counts here as
soon as it does in any folder, and a restart on this machine goes on from it, whatever part of it has reached the store.
A thread looks at the folder and sends what has changed, in an order that keeps a training's rules in the store too:
checkpoints that are no part of the log any more are removed first; then go settings, log and attempts, which tell of
every checkpoint that was there before; then checkpoints, each by its files, their manifests and, last, the file by
which Orbax commits; then rows. A checkpoint in the store counts if that file is there.

Who had the lock last has all that is in the store, and perhaps more. So a machine that had it last goes on from its own
folder, and so does one after which nobody trained: of whose checkpoints, rows and log the store has no other than it
sent. What the store has and the folder lacks is fetched, and what the store has lost is sent again. Any other machine
takes what is in the store, and moves what it had aside.

Of a store's folder only what a training writes is read, written or removed, and nothing at all where no
``training.json`` of ours tells that the folder is a training's.
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

from fsspec.callbacks import Callback
from fsspec.implementations.dirfs import DirFileSystem

from moejax.errors import CoordinatedError, UserError
from moejax.folder import WRITTEN, only_writer, user_cache
from moejax.storage import CONTACT_SECONDS, open_storage, reaching, read_text, within
from moejax.stored import Damaged, check_writable, parse_json, read_json, write_json
from moejax.train.identity import DIVERGED, RUNS, TRAINING, fingerprint
from moejax.train.manifest import COMMITTED, is_committed
from moejax.train.store_lock import BEAT_SECONDS, LEASE_SECONDS, LOCKS, StoreLock, TakenOver, lock_numbers, read_holder
from moejax.wording import counted, says, some, told

STORE = ".store.json"
"""In a working folder: of which store it is the copy, as of which number of the lock, and what of it was sent."""

_LEFT_HERE = ("data", "profile")
"""Folders that stay on the machine: tokens are made again, or read from a prepared set."""

_OURS = re.compile(
    r"(?:runs/[^/]+/)?(?:"
    r"(?:training[^/]*|history|corpus|initial_weights|diverged|wandb|attempts[^/]*|branch-[0-9]+)\.json|metrics\.jsonl"
    r"|(?:checkpoints/(?:trunk|branch-[0-9]+)/[0-9]+|tensorboard/(?:trunk|branch-[0-9]+))/.+"
    r")|programs/.+"
)
"""Files that a training writes and that belong in the store; with ``vmap`` axes its runs write the same below
``runs/NAME``.
"""

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

_ASIDE = ".replaced-"
"""In a working folder, with a number: what was here before it was replaced."""

_KNOWN = {"url": str, "number": int, "sent": dict[str, list[int]]}


def default_folder(url: str) -> Path:
    """Default working directory on this machine of a training in a store."""
    return user_cache() / "runs" / hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]


def check_shared(folder: Path, number: int) -> None:
    """Raise ``UserError`` if this process does not see the working folder that the first process opened."""
    path = folder / STORE
    known = read_json(path, _KNOWN, remedy=_another(folder)) if path.exists() else {"number": _NO_NUMBER}
    if known["number"] != number:
        raise UserError(
            f"{folder} is not the folder that process 0 works in: with a store as --out, processes on several machines "
            f"need a disk that all of them see. Name a folder on one with --local, or mount the store as --out."
        )


class StoredRun:
    """The copy in a store of one working folder, for as long as its lock is held.

    Args:
      begins: whether a training may begin here; otherwise one must be there.
      sent: told of the bytes that have reached the store, while they do.

    Raises:
      UserError: the store cannot be reached or written to, or another process writes there; or the working folder or
        the store's is something else. Nothing is left in either then.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        log: Callable[[str], None] = lambda text: None,
        *,
        begins: bool = True,
        sent: Callable[[int], None] = lambda size: None,
    ):
        self._url, self._folder, self._log, self._begins = url.rstrip("/"), folder, log, begins
        self._storage = open_storage(self._url)
        self._lock = StoreLock(self._storage, self._url, log)
        self._sent: dict[str, list[int]] = {}
        """Size, modification time and inode of every uploaded file on this machine; empty if unknown."""
        self._callback = _OnSent(sent)
        self._over, self._is_sent = threading.Event(), threading.Event()
        self._failing = False
        self._sending = threading.Thread(target=self._keep_sending, daemon=True)
        self._beating = threading.Thread(target=self._beat, daemon=True)

    @property
    def number(self) -> int:
        """Number of the lock."""
        return self._lock.number

    def __enter__(self) -> StoredRun:
        known = self._known()
        with reaching(self._url):
            self._look(known)
        check_writable(self._folder)
        previous = self._lock.acquire()
        try:
            with reaching(self._url):
                self._take(known, previous)
        except BaseException:
            with contextlib.suppress(Exception):
                self._lock.release()
            raise
        self._sending.start()
        self._beating.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Send the rest, and give the lock back.

        Raises:
          CoordinatedError: it cannot be sent, of a training that all processes have left.
        """
        self._over.set()
        if (self._folder / TRAINING).exists():
            self._log(f"Sending the rest to {self._url}.")
        try:
            self._send_rest()
        except UserError as problem:
            if kind is None or not issubclass(kind, Exception):
                raise CoordinatedError(str(problem)) from problem
            self._log(told(problem))
        finally:
            self._is_sent.set()

    def send(self, *, all_of_it: bool = False) -> None:
        """Bring the store to what the folder is now; a large log only with a checkpoint or a row, or with all of it."""
        self._lock.check()
        if not (self._folder / TRAINING).exists():
            if TRAINING in self._sent:
                raise UserError(
                    f"{self._folder / TRAINING} was removed while its training runs; nothing more is written to "
                    f"{self._url}, and what is there stays. Give the same command again."
                )
            return
        # By it a store's folder is known to be a training's.
        self._send_files([TRAINING])
        # Rows are looked for before checkpoints, and these before the log: what is sent of the one is told of in what
        # is sent of the next, whatever is written meanwhile.
        rows = list(self._files(_ROW))
        steps = self._steps()
        gone = {step for path in self._sent if (step := _step_of(path))} - set(steps)
        newest = _newest(steps)
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
        """Return the record of the last use of the directory; None if there is none.

        Raises:
          UserError: it is something else than a copy of this training.
        """
        path = self._folder / STORE
        try:
            is_known, is_new = path.exists(), not self._folder.is_dir() or not any(self._folder.iterdir())
        except OSError as error:
            raise UserError(
                f"{self._folder} cannot be read ({says('the system', error)}); {_another(self._folder)}."
            ) from error
        if is_known:
            known = read_json(path, _KNOWN, remedy=_another(self._folder))
            if known["url"] != self._url:
                raise UserError(
                    f"{self._folder} is the copy of {known['url']}, and not of {self._url}; {_another(self._folder)}."
                )
            return known
        if is_new:
            return None
        raise UserError(
            f"{self._folder} is not empty, and no {STORE} in it tells of which training in a store it is the copy; "
            f"{_another(self._folder)}."
        )

    def _look(self, known: Mapping[str, Any] | None) -> tuple[dict[str, int], dict[str, Any] | None]:
        """The bytes of every file of this training in the store, and its settings; None if they are not there.

        Raises:
          UserError: what is in the store is no training, or there is none to go on with.
        """
        found = {path: size for path, size in _found(self._storage).items() if not path.startswith(f"{LOCKS}/")}
        if TRAINING in found:
            text = read_text(self._storage, TRAINING) or ""
            remedy = "nothing there was touched. Bring back a copy, or name another folder as --out"
            training = parse_json(text, dict, f"{self._url}/{TRAINING}", remedy=remedy)
            return {path: size for path, size in found.items() if _is_ours(path, training)}, training
        is_whole = (self._folder / TRAINING).exists() and known is not None and known["number"] != _NO_NUMBER
        others = sorted(set(found) - set(known["sent"] if known is not None and is_whole else ()))
        if others:
            raise UserError(
                f"{self._url} holds {some(others, most=3)}, and no {TRAINING} of moejax's: it is no training's folder, "
                f"and nothing there was touched. Name an empty folder or a training's, such as {self._url}/NAME."
            )
        if not is_whole and any(self._files()) | bool(self._steps()):
            raise UserError(
                f"{self._folder} holds a part of a training, and {self._url} none, so there is none to go on with; "
                f"{_another(self._folder)}."
            )
        if not is_whole and not self._begins:
            raise UserError(f"{self._url} holds no training to go on with; start one with --config=FILE.py.")
        return found, None

    def _take(self, known: dict[str, Any] | None, previous: int) -> None:
        """Make the working folder the newest there is."""
        sizes, training = self._look(known)
        committed = _committed(sizes)
        counts = {path: size for path, size in sizes.items() if _step_of(path) in {None, *committed}}
        # A folder that was being replaced is nothing to go on from.
        own = known if known is not None and known["number"] != _NO_NUMBER else None
        # In a store that was emptied, numbers begin anew.
        is_last = own is not None and (own["number"], own.get("process")) == (previous, self._lock.previous_process)
        if own is not None and (is_last or training is None or _is_as_left(own["sent"], counts)):
            self._go_on(counts, own["sent"])
            if training is None and (self._folder / TRAINING).exists():
                self._log(f"{self._url} holds no training any more: the one in {self._folder} is sent there again.")
            elif not is_last and previous:
                self._log(f"Another process had {self._url} since, and trained nothing: {self._folder} goes on.")
        else:
            self._make_room(own["sent"] if own is not None else None, counts, training)
            self._replace(counts)
        if not (self._folder / TRAINING).exists():
            # What stays on a machine belongs to no training then, and would be in the way of the next.
            for name in _LEFT_HERE:
                shutil.rmtree(self._folder / name, ignore_errors=True)
        # What was begun and not committed.
        self._remove(set(sizes) - set(counts))
        self._note()

    def _go_on(self, sizes: Mapping[str, int], sent: Mapping[str, list[int]]) -> None:
        """Go on from what is here, and fetch what the store has and this folder lacks."""
        is_whole = (self._folder / TRAINING).exists()
        # What another process wrote beside is written anew.
        self._sent = {path: what if (what := sent.get(path, []))[:1] == [size] else [] for path, size in sizes.items()}
        self._note()
        here = self._steps()
        newest = _newest(here)

        def is_lacking(path: str) -> bool:
            size, step = self._size(path), _step_of(path)
            if step is None:
                # Whoever removes this one asks for another try.
                return size is None and not (is_whole and path.endswith(DIVERGED))
            if step not in here:
                is_newer = int(step.name) > newest.get(step.parent, -1)
                return not (is_newer and self._is_rewound(step, sent))
            # A step that was taken again here is another than the store's.
            is_as_sent = self._size(f"{step}/{COMMITTED}") is None or not self._is_changed(f"{step}/{COMMITTED}")
            return is_as_sent and size != sizes[path] and (size is None or not _RECORD.fullmatch(path))

        if lacking := list(filter(is_lacking, sizes)):
            self._log(f"{self._folder} lacks {counted(len(lacking), 'file')} of {self._url}, fetched from there.")
            self._fetch(lacking)

    def _is_rewound(self, step: PurePosixPath, sent: Mapping[str, Sequence[int]]) -> bool:
        """Return whether the log was truncated since the upload, as by a training that resumes from an earlier step."""
        log = str(step.parents[2] / "metrics.jsonl")
        size = self._size(log)
        return size is not None and size < next(iter(sent.get(log, ())), 0)

    def _size(self, path: str) -> int | None:
        """Bytes of a file of the folder; None if it is not there."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / path).stat().st_size
        return None

    def _make_room(
        self, sent: Mapping[str, Sequence[int]] | None, sizes: Mapping[str, int], training: Mapping[str, Any] | None
    ) -> None:
        """Move aside what is here, but for what the store has; ``sent`` is None where all that is here is a part of
        what was being fetched from there."""
        entries = [path for path in self._folder.iterdir() if path.name not in _LEFT_HERE and path.name[0] != "."]
        # That of a store which was emptied, and where the like was begun, is behind what was sent.
        has_gone_on = sent is not None and self._is_of(training) and _is_ahead(sizes, sent)

        def is_in_store(path: Path) -> bool:
            name = path.relative_to(self._folder).as_posix()
            return sent is None or (has_gone_on and not path.is_symlink() and sent.get(name) == _as_sent(path))

        kept = [path for entry in entries for path in _files_of(entry) if not is_in_store(path)]
        if kept:
            numbers = (self._folder / f"{_ASIDE}{number}" for number in itertools.count(1))
            aside = next(place for place in numbers if not os.path.lexists(place))
            for path in kept:
                place = aside / path.relative_to(self._folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                path.rename(place)
            self._log(
                f"{self._folder} goes on from what is in {self._url}, where another process has gone on. What was here "
                f"and is not there is in {aside}; remove it when you do not need it."
            )
        for entry in filter(os.path.lexists, entries):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _is_of(self, training: Mapping[str, Any] | None) -> bool:
        """Return whether the directory is that of a training."""
        try:
            mine = read_json(self._folder / TRAINING, dict, remedy="")
        except Damaged:
            return False
        return training is not None and fingerprint(mine) == fingerprint(training)

    def _replace(self, found: Iterable[str]) -> None:
        """Fetch all of a training to a folder that has nothing of it."""
        found = list(found)
        if found:
            # Only once all that was here is aside: what is here from now on is a part of what is in the store.
            write_json(self._folder / STORE, {"url": self._url, "number": _NO_NUMBER, "sent": {}})
        if any(map(_step_of, found)):
            self._log(f"Fetching {self._url} to {self._folder}.")
        self._fetch(found)

    def _fetch(self, paths: Iterable[str]) -> None:
        """Files of the store; of checkpoints those last by which they count."""

        def fetch(path: str) -> None:
            self._sent[path] = _as_sent(_download(self._storage, path, self._folder))

        def commits(path: str) -> bool:
            return path.endswith(f"/{COMMITTED}") or bool(_RECORD.fullmatch(path))

        every = list(paths)
        _in_parallel(fetch, itertools.filterfalse(commits, every))
        _in_parallel(fetch, filter(commits, every))

    def _files(self, pattern: re.Pattern[str] | None = None) -> Iterator[str]:
        """Files of the folder that belong in the store, checkpoints apart."""
        for place, folders, names in os.walk(self._folder):
            at = PurePosixPath(Path(place).relative_to(self._folder).as_posix())
            left = ("checkpoints", *(_LEFT_HERE if Path(place) == self._folder else ()))
            folders[:] = sorted(set(folders) - {*left})
            for name in sorted(names):
                path = str(at / name)
                # Locks, and what is being written, begin with a dot.
                is_whole = not name.startswith(".") or name == WRITTEN
                if is_whole and _OURS.fullmatch(path) and (pattern is None or pattern.fullmatch(path)):
                    yield path

    def _steps(self) -> list[PurePosixPath]:
        """Checkpoints of the folder that count, as paths below it; of a phase in order."""
        phases = [Path(place) for place, _, _ in os.walk(self._folder) if Path(place).parent.name == "checkpoints"]
        steps = [path for phase in phases for path in phase.iterdir() if path.name.isdecimal() and is_committed(path)]
        found = [PurePosixPath(path.relative_to(self._folder).as_posix()) for path in steps]
        found = [step for step in found if _OURS.fullmatch(f"{step}/{COMMITTED}")]
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
                self._callback.relative_update(as_sent[0])
            else:
                self._storage.put_file(str(place), path, callback=self._callback)
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
        mine = {"number": self._lock.number, "process": self._lock.process}
        write_json(self._folder / STORE, {"url": self._url, **mine, "sent": dict(self._sent)})

    def _keep_sending(self) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_PASSES):
            self._try(self.send)

    def _beat(self) -> None:
        # Until nothing is sent any more: the rest may take longer than others wait for a sign of life.
        while not self._is_sent.wait(BEAT_SECONDS):
            self._try(self._lock.beat)

    def _try(self, work: Callable[[], None]) -> None:
        """Retry a failed upload and report it once; a process that has lost the lock stops."""
        try:
            work()
            self._failing = False
        except TakenOver as problem:
            if self._over.is_set():
                # Who sends the rest finds it out and says it.
                return
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
                # Its client's own limits are minutes, and threads may be waiting for them.
                within(CONTACT_SECONDS, self._lock.check)
                self._sending.join()
                self.send(all_of_it=True)
                self._is_sent.set()
                self._beating.join()
                # What was refused before it began leaves nothing.
                self._lock.release() if self._sent else self._lock.withdraw()
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


class _OnSent(Callback):
    """Passes on what fsspec tells of a file that is sent in parts."""

    def __init__(self, sent: Callable[[int], None]):
        super().__init__()
        self._sent = sent

    def relative_update(self, inc: int = 1) -> None:
        self._sent(inc)


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
    """Copy a file of a store to its place in ``folder``, whole."""
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f".{os.getpid()}.{place.name}")
    try:
        storage.get_file(path, str(partial))
        return partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def _another(folder: Path) -> str:
    """Remedy for a working directory that a training in a store cannot use."""
    is_trained = any(os.path.isdir(folder / name) for name in ("checkpoints", RUNS))
    lacks = ", and may hold steps that the store lacks" if is_trained else ""
    return f"name an empty folder of this machine with --local; what is in {folder} stays{lacks}"


def _is_ours(path: str, training: Mapping[str, Any]) -> bool:
    """Return whether this training writes a file of the store, and not a training below it."""
    return bool(_OURS.fullmatch(path)) and (not path.startswith(f"{RUNS}/") or bool(training.get("vmap")))


def _is_small(path: str) -> bool:
    if _step_of(path) is None:
        return not path.startswith((f"{LOCKS}/", "programs/"))
    return path.endswith((f"/{COMMITTED}", "/metadata/metadata")) or bool(_RECORD.fullmatch(path))


def _is_written(storage: DirFileSystem) -> bool:
    """Return whether a process holds the lock of a store: by the store's clock and ours for one of another machine."""
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


def _newest(steps: Iterable[PurePosixPath]) -> dict[PurePosixPath, int]:
    """The last checkpoint by phase."""
    found: dict[PurePosixPath, int] = {}
    for step in steps:
        found[step.parent] = max(int(step.name), found.get(step.parent, 0))
    return found


def _committed(paths: Iterable[str]) -> set[PurePosixPath]:
    """The checkpoints that count."""
    return {step for path in paths if path.endswith(f"/{COMMITTED}") and (step := _step_of(path))}


def _is_ahead(sizes: Mapping[str, int], sent: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a store has rows and checkpoints at least as new as the uploaded ones."""
    there, newest = _newest(_committed(sizes)), _newest(_committed(sent))
    has_rows = all(path in sizes for path in filter(_ROW.fullmatch, sent))
    return has_rows and all(there.get(phase, -1) >= step for phase, step in newest.items())


def _files_of(entry: Path) -> list[Path]:
    """Every file of a folder; a link or a file by itself."""
    if entry.is_symlink() or not entry.is_dir():
        return [entry]
    return [path for path in entry.rglob("*") if path.is_symlink() or not path.is_dir()]


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
    """Return whether a store has exactly the uploaded checkpoints, rows and log, by names and sizes; ``sizes`` leaves
    out uncommitted files.
    """

    committed = _committed(sent)

    def counts(path: str) -> bool:
        return bool(_step_of(path) in committed or _ROW.fullmatch(path) or _LOG.fullmatch(path))

    trained = {path: size for path, size in sizes.items() if _step_of(path) or counts(path)}
    return trained.items() <= {path: what[0] for path, what in sent.items() if what and counts(path)}.items()
