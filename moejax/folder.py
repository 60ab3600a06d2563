"""Output folders: one owner, one writer at a time, every file whole."""

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
from typing import IO, Any

from moejax.errors import UserError
from moejax.json_text import json_text

WRITTEN = ".moejax-written"
"""The file of a folder with the names and hashes of what moejax wrote there, one JSON list a line."""


def user_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of moejax below the user's cache directory, which need not exist.

    Raises:
      RuntimeError: the user has no home.
    """
    # The XDG Base Directory Specification: a relative path is not valid, and ignored.
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "moejax"


_CHUNK_BYTES = 2**22

_OUTPUTS: ContextVar[Path | None] = ContextVar("outputs", default=None)
_INPUTS: ContextVar[frozenset[Path]] = ContextVar("inputs", default=frozenset())
_SET: ContextVar[dict[Path, Path] | None] = ContextVar("set", default=None)


@contextlib.contextmanager
def reading(paths: Iterable[Path]) -> Iterator[None]:
    """While this lasts, ``atomic_write`` replaces none of these files: they are what a command reads."""
    token = _INPUTS.set(frozenset(path.resolve() for path in paths))
    try:
        yield
    finally:
        _INPUTS.reset(token)


@contextlib.contextmanager
def outputs_of(folder: Path) -> Iterator[None]:
    """While this lasts, ``atomic_write`` replaces a file below ``folder`` only if moejax wrote it there, as it is now.

    What it writes is noted in ``folder/.moejax-written``, so that the same command can be given again.
    """
    token = _OUTPUTS.set(folder.absolute())
    try:
        yield
    finally:
        _OUTPUTS.reset(token)


def check_replaceable(path: Path) -> None:
    """Raise ``UserError`` if writing ``path`` would replace what a command reads, or what moejax did not write."""
    if not os.path.lexists(path):
        return
    # Path.resolve fails for a link that leads back to itself.
    if Path(os.path.realpath(path)) in _INPUTS.get():
        raise UserError(f"{path} is read by this command and would be replaced by its results; choose another --out.")
    folder = _OUTPUTS.get()
    if folder is None or not path.absolute().is_relative_to(folder):
        return
    name = path.absolute().relative_to(folder).as_posix()
    known = noted(folder)
    if name not in known:
        raise UserError(f"{path} is there already, and moejax did not write it; name another place, or move it away.")
    if path.is_symlink() or not path.is_file() or sha256(path) not in known[name]:
        raise UserError(f"{path} was changed after moejax wrote it; name another place, or move it away.")


def written_in(folder: Path) -> list[str]:
    """Names of the files in an output folder that moejax wrote."""
    # Also of a name that no file can have.
    return sorted(name for name in noted(folder) if os.path.isfile(folder / name))


def noted(folder: Path) -> dict[str, set[str]]:
    """The hashes that files of an output folder had when moejax wrote them, by name.

    Raises:
      UserError: what stands there under the name of the notes is no file.
    """
    noted: dict[str, set[str]] = {}
    try:
        with _notes(folder, os.O_RDONLY) as file:
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return noted
    for line in lines:
        # A line that was torn names nothing, so the file that it was about is left alone.
        with contextlib.suppress(ValueError, RecursionError):
            match json.loads(line):
                case [str(name), str(content)]:
                    noted.setdefault(name, set()).add(content)
    return noted


def _note(path: Path, partial: Path) -> None:
    """Note what ``path`` is about to be, before it is: a note without its file does no harm."""
    folder = _OUTPUTS.get()
    if folder is not None and path.absolute().is_relative_to(folder):
        note(folder, path.absolute().relative_to(folder).as_posix(), partial)


def note(folder: Path, name: str, file: Path) -> None:
    """Note that moejax writes ``name`` in a folder, with the content of ``file``."""
    content = sha256(file)
    if content not in noted(folder).get(name, ()):
        with _notes(folder, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as notes:
            # After a line that was torn, too, a line begins.
            notes.write(f"\n{json.dumps([name, content])}\n".encode())
            # Before the file: without its note, a file that outlived a power failure would seem changed by hand.
            notes.flush()
            os.fsync(notes.fileno())


def check_as_written(path: Path, content: str | None = None) -> None:
    """Raise ``UserError`` if moejax noted what it wrote at ``path``, and it is something else now.

    For formats that keep no hash of their own. Of a file that moejax did not write, nothing is known. ``content`` is
    the file's hash, where it is known.
    """
    # A link may lead to what moejax wrote, or have taken its place.
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        known = noted(place.parent).get(place.name)
        if known and path.is_file() and (content or sha256(path)) not in known:
            raise UserError(
                f"{path} is not what moejax wrote there: it was damaged, or changed by hand. Bring back a copy, or "
                f"remove it and write it again; if you changed it, keep it in another folder, without {WRITTEN}."
            )


@contextlib.contextmanager
def _notes(folder: Path, flags: int) -> Iterator[IO[bytes]]:
    """The file of the notes, and nothing that stands there in its place: a link would lead to a file of somebody
    else's, and a pipe has no end.

    Raises:
      UserError: it is no file.
    """
    path = folder / WRITTEN
    wrong = UserError(f"{path} is no file, and moejax notes there what it writes; choose another --out, or remove it.")
    if path.is_symlink() or path.is_dir():
        raise wrong
    # Without O_NONBLOCK, opening a pipe waits for who reads or writes it.
    with os.fdopen(
        os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666), "ab" if flags & os.O_WRONLY else "rb"
    ) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise wrong
        yield file


def sha256(path: Path, read: Callable[[int], None] = lambda size: None) -> str:
    """The hash of a file's content; ``read`` is told of its bytes as they are read."""
    found, chunk = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            found.update(chunk[:size])
            read(size)
    return found.hexdigest()


@contextlib.contextmanager
def atomic_write(path: Path, *, noted: bool = False) -> Iterator[Path]:
    """Yields a temporary file to write; afterwards ``path`` is either the old file or all of the new one.

    That holds whenever the process dies, and, since the bytes reach the disk first, when the power fails. With
    ``noted``, ``check_as_written`` knows it afterwards.

    Raises:
      UserError: ``path`` may not be replaced, as ``check_replaceable`` says.
    """
    check_replaceable(path)
    # A name may have 255 bytes; the end stays, since libraries read the kind of a file from it.
    tail = path.name if len(os.fsencode(path.name)) < 200 else path.name[-40:]
    partial = path.with_name(f".{os.getpid()}.{tail}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        _note(path, partial)
        if noted:
            note(path.parent, path.name, partial)
        if (waiting := _SET.get()) is not None:
            held = partial.with_name(f".{os.getpid()}.set.{tail}")
            waiting[path] = partial.replace(held)
        else:
            _take_place({path: partial})
    except Exception as error:
        # Libraries say in ways of their own, and without a number, that a disk is full; the system says it with one.
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
    """What ``atomic_write`` writes while this lasts takes its place at the end, in the order in which it was written,
    and none of it does if something fails: a reader finds files that belong together. The last may name the others.

    A set inside another is a part of it.
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
    """Rename files, each to the path that it is to be, so that it stays when the power fails."""
    for path, partial in partials.items():
        partial.replace(path)
    for parent in {path.parent for path in partials}:
        folder = os.open(parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _grow(path: Path) -> None:
    """Raise ``OSError`` if no more can be written to a file that is about to be removed."""
    with path.open("ab", buffering=0) as file:
        left = 2**16
        while left:
            left -= file.write(bytes(left))
        os.fsync(file.fileno())


def check_new_folder(path: Path) -> None:
    """Raise ``UserError`` if ``atomic_folder`` could not put a folder at ``path``.

    It takes the place of nothing or of an empty folder, and not of a link, nor of the folder that the command is given
    in: a shell would be left standing in a deleted one.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link, which a new folder would replace; name what it leads to as --out.")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} is there already; choose another --out, or remove it.")
    if path.absolute() == Path.cwd() or path.resolve() == Path.cwd():
        raise UserError(f"{path} is the folder that this command is given in; name a new folder in it as --out.")


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder to fill; afterwards ``path`` is all of it. Whatever happens before, there is no ``path``.

    Raises:
      UserError: ``path`` is there already, or another process is filling it.
    """
    check_new_folder(path)
    path = path.absolute()
    partial = path.with_name(f".{path.name}.partial")
    if partial.is_symlink() or (partial.exists() and not _is_left(partial)):
        raise UserError(
            f"{partial} is there already, and the new folder is first written there; remove it if it is left of a "
            f"command that was stopped, move it away, or choose another --out."
        )
    partial.mkdir(parents=True, exist_ok=True)
    with only_writer(partial, patience_seconds=0.0):
        try:
            # What a process that was killed has left is of no use.
            _empty(partial, keep=".lock")
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        (partial / ".lock").unlink()
        partial.replace(path)


def _is_left(folder: Path) -> bool:
    """Whether a folder is one that ``atomic_folder`` was filling, or empty."""
    return folder.is_dir() and ((folder / ".lock").is_file() or not any(folder.iterdir()))


def _empty(folder: Path, keep: str) -> None:
    for child in folder.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        elif child.name != keep:
            child.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a file of text, whole."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole."""
    write_text(path, json_text(value) + "\n")


def changes(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """What differs between two nested values: old and new by their path, ``a.b``; what is not there is None."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = list(old) + [key for key in new if key not in old]
        return {
            place: pair
            for key in keys
            for place, pair in changes(old.get(key), new.get(key), f"{path}.{key}" if path else str(key)).items()
        }
    return {} if old == new else {path: (old, new)}


def differences(old: Any, new: Any) -> list[str]:
    """What differs between two nested values, as ``a.b was 1, is 2``."""
    return [f"{path} was {_short(was)}, is {_short(now)}" for path, (was, now) in changes(old, new).items()]


def _short(value: Any, most: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def open_regular(path: Path, flags: int) -> int | None:
    """A file's descriptor, as ``os.open`` gives it; None of what is no regular file, such as a pipe: opening one
    without O_NONBLOCK waits for who opens its other end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


@contextlib.contextmanager
def _lock(folder: Path, flags: int) -> Iterator[int]:
    path = folder / ".lock"
    if (lock := open_regular(path, flags)) is None:
        raise UserError(f"{path} is no file, and moejax keeps the folder's lock there; remove it.")
    try:
        yield lock
    finally:
        os.close(lock)


def has_writer(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
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
    """The lock of a folder that this process holds."""

    folder: Path
    token: str
    """What this process wrote into the lock; empty if it could not."""

    def is_held(self) -> bool:
        """Whether the folder is still the one that was locked, as far as the system can tell now."""
        try:
            return not self.token or (self.folder / ".lock").read_text() == self.token
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            return True

    def check(self) -> None:
        """Raise ``UserError`` if somebody has moved or replaced the folder, or its lock, meanwhile."""
        if not self.is_held():
            raise UserError(
                f"{self.folder} is not what it was when this process began to write to it: it was moved or replaced, "
                f"or its .lock was removed. Nothing more is written there. See what is there, and start again with the "
                f"folder that is to go on."
            )


@contextlib.contextmanager
def only_writer(folder: Path, patience_seconds: float = 15.0) -> Iterator[HeldLock]:
    """Hold the folder's lock, which dies with the process.

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
        # Not the file's number in its file system: buckets that are mounted change it.
        token = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}\n"
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, token.encode(), 0)
            os.fsync(lock)
        except OSError:
            token = ""
        yield HeldLock(folder, token)
