"""Output folders: one owner, one writer at a time, every file whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moejax.wording import some


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yields a temporary file to write; afterwards ``path`` is either the old file or all of the new one.

    That holds whenever the process dies, and, since the bytes reach the disk first, when the power fails.
    """
    partial = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder to fill; afterwards ``path`` is all of it. Whatever happens before, there is no ``path``.

    Raises:
      ValueError: ``path`` is there already, or another process is filling it.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} is there already; choose another --out, or remove it.")
    path = path.absolute()
    partial = path.with_name(f".{path.name}.partial")
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


def _empty(folder: Path, keep: str) -> None:
    for child in folder.iterdir():
        if child.is_dir():
            shutil.rmtree(child)
        elif child.name != keep:
            child.unlink()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole."""
    with whole(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n")


def claim(folder: Path, name: str, value: Any) -> None:
    """Make ``folder`` the output of ``value``, kept in ``folder/name``; continue if it is already.

    Raises:
      ValueError: the folder cannot be written, or holds something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"The output folder {folder} cannot be written ({error.strerror}); choose another --out."
        ) from error
    path = folder / name
    if path.exists():
        refuse_another(folder, json.loads(path.read_text()), value)
    elif any(child for child in folder.iterdir() if not child.name.startswith(".")):
        raise ValueError(f"{folder} is not empty and holds no {name}; choose an empty or new folder with --out.")
    else:
        write_json(path, value)


def refuse_another(folder: object, owner: Any, value: Any) -> None:
    """Raise ``ValueError`` if ``folder``, which is the output of ``owner``, would become that of another value."""
    different = differences(owner, json.loads(json.dumps(value)))
    if different:
        raise ValueError(
            f"{folder} belongs to another run: {some(different, between='; ')}. Choose another --out, or the same "
            "settings."
        )


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
    return [f"{path} was {was!r}, is {now!r}" for path, (was, now) in changes(old, new).items()]


def has_writer(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
    try:
        with (folder / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@contextlib.contextmanager
def only_writer(folder: Path, patience_seconds: float = 15.0) -> Iterator[None]:
    """Hold the folder's lock, which dies with the process.

    Raises:
      ValueError: another process still holds it after ``patience_seconds``.
    """
    with (folder / ".lock").open("a+") as lock:
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"Another process is writing to {folder}; wait for it, stop it, or choose another --out."
                    ) from None
                time.sleep(0.2)
        yield
