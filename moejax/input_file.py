"""Open files that a user names: regular files only, decompressed by suffix, within limits.

A pipe blocks its reader, and a device has no end. A small compressed file may hold one line of gigabytes. A clone
without Git LFS has pointers in place of files. All code that reads such files opens or checks them with this module.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from moejax.errors import UserError

UNREADABLE = (OSError, EOFError, zlib.error)
"""Exceptions of a damaged or vanished file. gzip.BadGzipFile and Arrow's zstd errors are OSErrors."""

MOST_LINE_BYTES = 2**28
"""Maximum length in bytes of a line, or of an item of a JSON array."""

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_BYTES = 1024
"""Upper bound of the size of a Git LFS pointer."""


def _zstd(path: str) -> Any:
    import pyarrow as pa

    # Arrow reads several consecutive frames, as parallel compressors write them, and reports a truncated one.
    return io.BufferedReader(pa.input_stream(path, compression="zstd"), 2**20)  # type: ignore[arg-type]


COMPRESSIONS: dict[str, Callable[[str], Any]] = {".gz": gzip.open, ".zst": _zstd}
"""Functions that open a file for reading, keyed by its last suffix."""


def is_compressed(path: str | Path) -> bool:
    """Return whether a file's last suffix is a compression suffix."""
    return Path(path).suffix in COMPRESSIONS


def inner_suffix(path: str | Path) -> str:
    """Return the suffix of the format: ``.jsonl`` for both ``a.jsonl`` and ``a.jsonl.zst``."""
    path = Path(path)
    return (path.with_suffix("") if is_compressed(path) else path).suffix.lower()


def check(path: str | Path) -> os.stat_result:
    """Return the status of a file that can be opened without blocking and has an end.

    Raises:
      UserError: the path is not a regular file, or is a Git LFS pointer.
      OSError: the file cannot be found or read.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is {_kind(status.st_mode)}, not a regular file; copy its content to a file.")
    if len(_LFS) < status.st_size < _LFS_BYTES:
        with open(path, "rb") as file:
            if file.read(len(_LFS)) == _LFS:
                raise UserError(f"{path} is a Git LFS pointer, not the file itself; fetch it with: git lfs pull")
    return status


def _kind(mode: int) -> str:
    tests = {"a folder": stat.S_ISDIR, "a pipe": stat.S_ISFIFO, "a socket": stat.S_ISSOCK}
    return next((name for name, test in tests.items() if test(mode)), "a device")


def check_text(path: str | Path) -> None:
    """Raise ``UserError`` if a text file begins in UTF-16 or UTF-32. Other damage is left to the file's reader.

    Raises:
      UserError: also as in ``check``.
    """
    with contextlib.suppress(*UNREADABLE), opened(path) as stream:
        if not json.detect_encoding(stream.read(4)).startswith("utf-8"):
            raise UserError(
                f"{path} is not UTF-8: it begins like UTF-16 or UTF-32, or with zero bytes. Save it as UTF-8."
            )


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading its decompressed bytes.

    Raises:
      UserError: see ``check``.
      OSError: the file cannot be found or read.
    """
    check(path)
    with COMPRESSIONS.get(Path(path).suffix, lambda p: open(p, "rb"))(str(path)) as stream:
        yield stream


def read_bytes(path: str | Path, most: int) -> bytes:
    """Return all bytes of a file, decompressed.

    Raises:
      UserError: see ``check``, or the file has more than ``most`` bytes.
      OSError: the file cannot be found or read.
    """
    with opened(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise UserError(f"{path} has more than {most:,} bytes; name a smaller file.")
    return content


def read_line(stream: IO[bytes]) -> bytes | None:
    """Return the next line with its line break, or ``b""`` at the end of the file.

    The result is None for a line longer than ``MOST_LINE_BYTES``; ``skip_line`` skips the rest of it.
    """
    line = stream.readline(MOST_LINE_BYTES + 1)
    return line if len(line) <= MOST_LINE_BYTES else None


def skip_line(stream: IO[bytes], end: int | None = None) -> None:
    """Skip the rest of a line, or at least up to byte ``end``."""
    while (part := stream.readline(2**20)) and part[-1:] != b"\n" and (end is None or stream.tell() < end):
        pass
