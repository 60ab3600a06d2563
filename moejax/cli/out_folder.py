"""Write results to ``--out`` under the same rules for every command.

A command never replaces its input files, files that moejax did not write, or files that were changed after moejax wrote
them. Only one command at a time writes to a folder. Related files appear together.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from moejax.errors import UserError
from moejax.folder import check_replaceable, one_set, only_writer, outputs_of
from moejax.wording import says

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for a full disk, an exceeded quota, and the maximum file size."""


_NEW: list[Path] = []
"""Folders that this process created for a result that is not complete."""
_HELD: ContextVar[Path | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def out_folder(folder: Path | None, *, shared: bool = False) -> Iterator[None]:
    """Create the folder if needed, hold its lock, and convert write errors to ``UserError``; do nothing for None.

    Args:
      shared: True if other commands may write there too; then no lock is taken.

    Raises:
      UserError: the folder cannot be created or written, another command is writing to it, or a file that moejax did
        not write would be replaced.
    """
    if folder is None or _HELD.get() == folder:
        yield
        return
    lock = contextlib.nullcontext() if shared else only_writer(folder, patience_seconds=1.0)
    with _said(folder), outputs_of(folder), _made(folder), lock:
        token = _HELD.set(folder)
        try:
            yield
        finally:
            _HELD.reset(token)


@contextlib.contextmanager
def out_set(folder: Path | None) -> Iterator[None]:
    """Use ``out_folder``, and make all files written in this context appear together at its end, or not at all."""
    with out_folder(folder), one_set():
        yield


@contextlib.contextmanager
def out_file(path: Path) -> Iterator[Path]:
    """Yield the path of a single file to write, under the rules of this module.

    Raises:
      UserError: the file cannot be written, or it exists and was not written by moejax.
    """
    with _said(path), outputs_of(path.parent), _made(path.parent):
        check_replaceable(path)
        yield path


def check_out(place: str | Path, files: tuple[str, ...] = ()) -> None:
    """Check, before any computation, that results can be written to a folder and may replace the files in it.

    Raises:
      UserError: the name is invalid, a part of the path is a file, or a file exists and was not written by moejax.
    """
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in str(place)):
        raise UserError(f"--out is {str(place)!r}; give a name without line breaks and other control characters.")
    if "://" in str(place):
        return
    folder = Path(place)
    at = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if at is not None and not at.is_dir():
        raise UserError(f"The results cannot be written to {place}: {at} is a file; choose another --out.")
    check_outputs(folder, files)


def check_outputs(folder: Path, names: tuple[str, ...]) -> None:
    """Check, before any computation, that a command's results may replace the files in a folder.

    Raises:
      UserError: one of the files exists and was not written by moejax.
    """
    with _said(folder), outputs_of(folder):
        for name in names:
            check_replaceable(folder / name)


def remove_empty_folders() -> None:
    """Remove the folders that this command created, if nothing was written into them."""
    for folder in reversed(_NEW):
        _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == [".lock"]:
            (folder / ".lock").unlink()
        folder.rmdir()


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Create a folder if needed, and remove it at the end if it was created and nothing was written into it."""
    if folder.is_dir():
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    _NEW.append(folder)
    try:
        yield
    finally:
        _NEW.remove(folder)
        _remove_if_empty(folder)


@contextlib.contextmanager
def _said(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "free disk space, or choose another --out" if error.errno in FULL else "choose another --out"
        raise UserError(f"The results cannot be written to {place} ({says('the disk', error)}); {remedy}.") from error
