"""``--out``: where results are written. One rule for every command: it replaces no file that moejax did not write as it
is now, and none that the command reads; one command at a time writes there, and files that belong together appear
together.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import re
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from moejax.errors import UserError
from moejax.folder import check_replaceable, one_set, only_writer, outputs_of
from moejax.wording import says

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says of a disk that takes no more, of a user's share of it, or of a file's largest size."""


def local(text: str) -> Path:
    """For ``add_argument("--out", type=local)``: a file or folder of this machine, where no store can be named."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a place of this machine, or leave it out")
    if re.match("[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise argparse.ArgumentTypeError(f"{text} is no place of this machine; name one, such as results, and copy it")
    return Path(text)


_HELD: ContextVar[Path | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def out_folder(folder: Path | None, *, shared: bool = False) -> Iterator[None]:
    """The folder, made if it is not there, and its lock; what goes wrong while it is made or written to becomes a
    sentence. Without a folder, nothing.

    Args:
      shared: others may write there too, so no lock is taken.

    Raises:
      UserError: it cannot be made or written to, another command is writing to it, or a file in it would be replaced
        that is not moejax's.
    """
    if folder is None or _HELD.get() == folder:
        yield
        return
    with _said(folder), outputs_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.nullcontext() if shared else only_writer(folder, patience_seconds=1.0):
            token = _HELD.set(folder)
            try:
                yield
            finally:
                _HELD.reset(token)


@contextlib.contextmanager
def out_set(folder: Path | None) -> Iterator[None]:
    """``out_folder``; what is written there while this lasts appears together at its end, or not at all."""
    with out_folder(folder), one_set():
        yield


@contextlib.contextmanager
def out_file(path: Path) -> Iterator[Path]:
    """A file to write; the same rule holds for it.

    Raises:
      UserError: it cannot be written, or is there already and not moejax's.
    """
    with _said(path), outputs_of(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_replaceable(path)
        yield path


def check_outputs(folder: Path, names: tuple[str, ...]) -> None:
    """Say at once, and not after the work, that a command's results may not replace what is in a folder.

    Raises:
      UserError: one of the files is there and is not moejax's.
    """
    with _said(folder), outputs_of(folder):
        for name in names:
            check_replaceable(folder / name)


@contextlib.contextmanager
def _said(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "make room, or choose another --out" if error.errno in FULL else "choose another --out"
        raise UserError(f"The results cannot be written to {place} ({says('the disk', error)}); {remedy}.") from error
