"""Manage output folders: one owner, one writer at a time, and only complete files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.wording import argument, shown

WRITTEN = ".moejax-written"
"""File in a folder with the names and hashes of the files that moejax wrote there, one JSON list per line."""


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return moejax's folder in the user's cache directory; the folder may not exist yet.

    Raises:
      RuntimeError: the user has no home directory.
    """
    # By the XDG Base Directory Specification, a relative path is invalid and must be ignored.
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "moejax"


_CHUNK_BYTES = 2**22

_OUTPUTS: ContextVar[Path | None] = ContextVar("outputs", default=None)
_INPUTS: ContextVar[frozenset[Path]] = ContextVar("inputs", default=frozenset())
_SET: ContextVar[dict[Path, Path] | None] = ContextVar("set", default=None)


def is_file(path: Path) -> bool:
    """Return whether a path is a file; False for invalid file names."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def fit_in(source: Path) -> Path:
    """Return the path of the fit in a folder that ``moejax fit`` wrote; return any other path unchanged."""
    fit = source / "fit.json"
    return fit if is_file(fit) and not (source / "study.json").exists() else source


@contextlib.contextmanager
def reading(paths: Iterable[Path]) -> Iterator[None]:
    """Protect the input files of a command: within this context, ``atomic_write`` does not replace them."""
    token = _INPUTS.set(frozenset(path.resolve() for path in paths))
    try:
        yield
    finally:
        _INPUTS.reset(token)


@contextlib.contextmanager
def outputs_of(folder: Path) -> Iterator[None]:
    """Restrict ``atomic_write`` within this context: it replaces a file below ``folder`` only if moejax wrote the file
    and its content has not changed since.

    Written files are recorded in ``folder/.moejax-written``, so that the same command can be repeated.
    """
    token = _OUTPUTS.set(folder.absolute())
    try:
        yield
    finally:
        _OUTPUTS.reset(token)


def check_replaceable(path: Path) -> None:
    """Raise ``UserError`` if writing ``path`` would replace an input of the command, or a file that moejax did not
    write.
    """
    if not os.path.lexists(path):
        return
    # Path.resolve fails for a link that points to itself.
    if Path(os.path.realpath(path)) in _INPUTS.get():
        raise UserError(
            f"{path} is read by this command and would be replaced by its results; choose another {argument('out')}."
        )
    if (place := _recorded_at(path)) is None:
        return
    folder, name = place
    known = noted(folder)
    if name not in known:
        raise UserError(f"{path} exists and was not written by moejax; choose another path, or move it away.")
    if path.is_symlink() or not path.is_file() or sha256(path) not in known[name]:
        raise UserError(f"{path} was changed after moejax wrote it; choose another path, or move it away.")


def _recorded_at(path: Path) -> tuple[Path, str] | None:
    """Return the folder of ``outputs_of`` and the name of ``path`` in it; None if ``path`` is elsewhere."""
    folder = _OUTPUTS.get()
    if folder is None or not path.absolute().is_relative_to(folder):
        return None
    return folder, path.absolute().relative_to(folder).as_posix()


def written_in(folder: Path) -> list[str]:
    """Return the names of the files in an output folder that moejax wrote."""
    # The record may contain a name that is not valid for a file.
    return sorted(name for name in noted(folder) if os.path.isfile(folder / name))


def noted(folder: Path) -> dict[str, set[str]]:
    """Return the recorded hashes of the files that moejax wrote in an output folder, keyed by file name.

    Raises:
      UserError: the record is not a regular file.
    """
    noted: dict[str, set[str]] = {}
    try:
        with os.fdopen(_open_record(folder, os.O_RDONLY), encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return noted
    for line in lines:
        # Skip a partly written line. Its file then counts as not written by moejax, and is not replaced.
        with contextlib.suppress(ValueError, RecursionError):
            match json.loads(line):
                case [str(name), str(content)]:
                    noted.setdefault(name, set()).add(content)
    return noted


def note(folder: Path, name: str, file: Path) -> None:
    """Record that moejax writes ``name`` in a folder, with the content of ``file``."""
    content = sha256(file)
    if content not in noted(folder).get(name, ()):
        with os.fdopen(_open_record(folder, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as notes:
            # The leading newline starts a new line after a torn one.
            notes.write(f"\n{json.dumps([name, content])}\n".encode())
            # The record is synced before the file. Otherwise, after a power failure, a new file without its record
            # would seem to be modified by hand.
            notes.flush()
            os.fsync(notes.fileno())


def check_as_written(path: Path, content: str | None = None) -> None:
    """Raise ``UserError`` if the content of ``path`` differs from the content that moejax recorded.

    Use it for formats without a hash of their own. Files that moejax did not write pass. ``content`` is the hash of
    the file, if known.
    """
    # The record may belong to the link or to its target.
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        known = noted(place.parent).get(place.name)
        if known and path.is_file() and (content or sha256(path)) not in known:
            raise UserError(
                f"{path} differs from the file that moejax wrote: it was damaged, or changed by hand. Restore a copy, "
                f"or remove it and write it again. If you changed it on purpose, move it to a folder without {WRITTEN}."
            )


def _open_record(folder: Path, flags: int) -> int:
    """Open the record of written files; raise ``UserError`` if it is a link or not a regular file."""
    path = folder / WRITTEN
    descriptor = None if path.is_symlink() or path.is_dir() else open_regular(path, flags)
    if descriptor is None:
        raise UserError(
            f"{path} must be a regular file, where moejax records its outputs; choose another --out, or remove it."
        )
    return descriptor


def sha256(path: Path, read: Callable[[int], None] = lambda size: None) -> str:
    """Return the hash of a file's content. ``read`` is called with the number of bytes of each chunk."""
    found, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            found.update(chunk[:size])
            read(size)
    return found.hexdigest()


@contextlib.contextmanager
def atomic_write(path: Path, *, noted: bool = False) -> Iterator[Path]:
    """Yield a temporary file; afterwards ``path`` is either the old file or the complete new one.

    This holds even if the process dies or, because the bytes are synced first, the power fails. With ``noted``, the
    hash is recorded for ``check_as_written``.

    Raises:
      UserError: ``path`` must not be replaced (see ``check_replaceable``).
    """
    check_replaceable(path)
    # A name may have 255 bytes. The end is kept, since libraries read the format from it.
    tail = path.name if len(os.fsencode(path.name)) < 200 else path.name[-40:]
    partial = path.with_name(f".{os.getpid()}.{tail}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        # The content is recorded before it is written. A record without a file does no harm.
        for folder, name in filter(None, (_recorded_at(path), (path.parent, path.name) if noted else None)):
            note(folder, name, partial)
        if (waiting := _SET.get()) is not None:
            held = partial.with_name(f".{os.getpid()}.set.{tail}")
            waiting[path] = partial.replace(held)
        else:
            _take_place({path: partial})
    except Exception as error:
        # Some libraries report a full disk without an error number. Growing the file gives the system's own error.
        if isinstance(error, UserError) or getattr(error, "errno", None) is not None or not partial.exists():
            raise
        try:
            _grow(partial)
        except OSError as refused:
            raise OSError(refused.errno, refused.strerror, str(path)) from error
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def one_set() -> Iterator[None]:
    """Hold back the files of ``atomic_write`` within this context, and replace all of them at its end, or none after an
    error.

    Readers therefore see files that belong together. Files are replaced in the order of writing, so the last file may
    refer to the others. A nested set is part of the outer one.
    """
    if _SET.get() is not None:
        yield
        return
    waiting: dict[Path, Path] = {}
    token = _SET.set(waiting)
    try:
        yield
        _take_place(waiting)
    finally:
        _SET.reset(token)
        for partial in waiting.values():
            partial.unlink(missing_ok=True)


def _take_place(partials: Mapping[Path, Path]) -> None:
    """Rename files to their final paths and sync the folders, so that they survive a power failure."""
    for path, partial in partials.items():
        partial.replace(path)
    for parent in {path.parent for path in partials}:
        folder = os.open(parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _grow(path: Path) -> None:
    """Append to a file that is about to be removed, which raises ``OSError`` if the disk is full."""
    with path.open("ab", buffering=0) as file:
        left = 2**16
        while left:
            left -= file.write(bytes(left))
        os.fsync(file.fileno())


def check_new_folder(path: Path) -> None:
    """Raise ``UserError`` if ``atomic_folder`` could not create a folder at ``path``.

    The new folder may replace an empty folder, but not a link or the current folder. Replacing the current folder would
    leave the shell in a deleted folder.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link, which a new folder would replace; give the link's target as --out.")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} already exists; choose another --out, or remove it.")
    if path.absolute() == Path.cwd() or path.resolve() == Path.cwd():
        raise UserError(f"{path} is the current folder; give a new folder in it as --out.")


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; afterwards ``path`` is the complete folder. Before that, ``path`` does not exist.

    Raises:
      UserError: ``path`` exists already, or another process is filling it.
    """
    check_new_folder(path)
    path = path.absolute()
    partial = path.with_name(f".{path.name}.partial")
    # A stopped command leaves its lock file in the folder.
    is_left = partial.is_dir() and ((partial / ".lock").is_file() or not any(partial.iterdir()))
    if partial.is_symlink() or (partial.exists() and not is_left):
        raise UserError(
            f"{partial} already exists, and the new folder is first written there. Remove it if a stopped command left "
            f"it there, move it away, or choose another --out."
        )
    partial.mkdir(parents=True, exist_ok=True)
    with only_writer(partial, patience_seconds=0.0):
        try:
            # Remove the files of a killed process, which are incomplete.
            for child in partial.iterdir():
                if child.is_dir():
                    shutil.rmtree(child)
                elif child.name != ".lock":
                    child.unlink()
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        (partial / ".lock").unlink()
        partial.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json_text(value) + "\n")


def changes(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the old and new values that differ, keyed by their path (``a.b``). Missing values are None."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(old) + [key for key in new if key not in old]
        return {
            place: pair
            for key in keys
            for place, pair in changes(old.get(key), new.get(key), f"{path}.{key}" if path else str(key)).items()
        }
    return {} if old == new else {path: (old, new)}


def differences(old: Any, new: Any) -> list[str]:
    """Return the differences of two nested values as texts such as ``a.b was 1, is 2``."""
    return [f"{path} was {shown(was)}, is {shown(now)}" for path, (was, now) in changes(old, new).items()]


def open_regular(path: Path, flags: int) -> int | None:
    """Open a file like ``os.open``, but return None if it is not a regular file. Opening a FIFO without O_NONBLOCK
    blocks until its other end is opened.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _lock(folder: Path, flags: int) -> Iterator[int]:
    path = folder / ".lock"
    if (lock := open_regular(path, flags)) is None:
        raise UserError(f"{path} must be a regular file, because moejax locks it; remove it.")
    try:
        yield lock
    finally:
        os.close(lock)


def has_writer(folder: Path) -> bool:
    """Return whether a process holds the folder's lock."""
    try:
        with _lock(folder, os.O_RDONLY) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@dataclass(frozen=True)
class HeldLock:
    """A folder's lock that this process holds."""

    folder: Path
    token: str
    """Content that this process wrote to the lock file; empty if writing failed."""

    def is_held(self) -> bool:
        """Return whether the folder is still the locked one; True if the lock file cannot be read."""
        try:
            return not self.token or (self.folder / ".lock").read_text() == self.token
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            return True

    def check(self) -> None:
        """Raise ``UserError`` if the folder or its lock file was moved or replaced since it was locked."""
        if not self.is_held():
            raise UserError(
                f"{self.folder} was moved or replaced, or its .lock was removed, after this process began to write to "
                f"it. Nothing more is written there. Check the folder, and start again with the folder to continue."
            )


@contextlib.contextmanager
def locked(folder: Path, *, shared: bool, patience_seconds: float = 0.0) -> Iterator[bool]:
    """Hold the folder's lock, shared or exclusively, and yield whether it is held.

    Yield False if other processes hold it for longer than ``patience_seconds``, and True on a file system without
    locks.
    """
    with _lock(folder, os.O_RDWR | os.O_CREAT) as lock:
        deadline, held = time.monotonic() + patience_seconds, False
        while not held:
            try:
                fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.05)
            except OSError:
                held = True
        yield held


@contextlib.contextmanager
def only_writer(folder: Path, patience_seconds: float = 15.0) -> Iterator[HeldLock]:
    """Hold the folder's lock exclusively; it is also released when the process dies.

    Raises:
      UserError: another process still holds it after ``patience_seconds``.
    """
    with _lock(folder, os.O_RDWR | os.O_CREAT) as lock:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"Another process is writing to {folder}; wait for it, stop it, or choose another --out."
                    ) from None
                time.sleep(0.2)
        # The inode number cannot replace this token, because mounted buckets change it.
        token = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}\n"
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, token.encode(), 0)
            os.fsync(lock)
        except OSError:
            token = ""
        yield HeldLock(folder, token)
