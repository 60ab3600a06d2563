"""Files as streams of bytes, whether compressed or not."""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

UNREADABLE = (OSError, EOFError, zlib.error)
"""What a damaged or vanished file raises: gzip.BadGzipFile and Arrow's zstd errors are OSErrors."""


def _zstd(path: str) -> Any:
    # Arrow reads several frames in a row, as parallel compressors write them, and says when the last is cut short.
    return io.BufferedReader(pa.input_stream(path, compression="zstd"), 2**20)  # type: ignore[arg-type]


COMPRESSIONS: dict[str, Callable[[str], Any]] = {".gz": gzip.open, ".zst": _zstd}
"""How to open a file for reading, by its last suffix."""


def is_compressed(path: str | Path) -> bool:
    """Whether a file's last suffix is that of a compression."""
    return Path(path).suffix in COMPRESSIONS


def inner_suffix(path: str | Path) -> str:
    """The suffix that tells the format: ``.jsonl`` of both ``a.jsonl`` and ``a.jsonl.zst``."""
    path = Path(path)
    return (path.with_suffix("") if is_compressed(path) else path).suffix.lower()


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file."""
    with COMPRESSIONS.get(Path(path).suffix, lambda p: open(p, "rb"))(path) as stream:
        yield stream
