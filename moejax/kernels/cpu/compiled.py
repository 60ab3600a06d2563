"""Compile kernels with numba and cache them per user.

Loading a file of numba's cache unpickles it and runs its machine code; numba verifies neither. Therefore only the user
may have write access to the folder. A file that differs from its recorded hash is removed and compiled again. This
check is skipped while other processes compile, because a new file's hash is recorded shortly after the file is written.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numba import cfunc

from moejax.errors import UserError
from moejax.folder import locked, note, noted, sha256, user_cache
from moejax.wording import says

FAST: dict[str, Any] = {"fastmath": {"reassoc", "contract", "arcp", "nsz", "afn"}, "error_model": "numpy"}
"""Numba options that allow reordered sums, which vectorization requires, but preserve NaN."""

config: Any = importlib.import_module("numba.core.config")

SHARED_CODE = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))))
"""Checksum of all code in this folder, which kernels may share."""


def compiled(kind: Any, function: Any, **options: Any) -> Any:
    """Return a function that XLA can call; it is compiled, or loaded from the cache."""
    # Numba recompiles a cached function if the function's file changes, but not if code in other files changes.
    function.__qualname__ += f"-{SHARED_CODE:08x}"
    try:
        with _cached():
            return cfunc(kind, cache=True, **options)(function)
    except (RuntimeError, OSError, UserError) as problem:
        if isinstance(problem, RuntimeError) and not any(word in str(problem) for word in ("cannot cache", "home")):
            raise
        warnings.warn(
            f"CPU kernels cannot be cached on disk ({says('numba', problem)}), so every process compiles them again, "
            "which takes seconds. Set NUMBA_CACHE_DIR to a writable folder that you own.",
            stacklevel=2,
        )
        return cfunc(kind, **options)(function)


@contextlib.contextmanager
def _cached() -> Iterator[None]:
    """Use moejax's folder for numba's cache files inside the context, and record the hashes of new files."""
    before = config.CACHE_DIR
    folder = _checked(Path(before) if before else user_cache() / "kernels")
    with locked(folder, shared=True, patience_seconds=10.0):
        config.CACHE_DIR, there = str(folder), _files(folder)
        try:
            yield
        finally:
            config.CACHE_DIR = before
        for path, changed in _files(folder).items():
            if there.get(path) != changed:
                note(folder, path.relative_to(folder).as_posix(), path)


@functools.cache
def _checked(folder: Path) -> Path:
    """Create the cache folder, and remove files that differ from their recorded hashes.

    Raises:
      OSError: another user owns the folder or can write to it, or the system denies access.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} belongs to another user, or others can write to it")
    with locked(folder, shared=False) as alone:
        known = noted(folder)
        for path in _files(folder) if alone else ():
            if sha256(path) not in known.get(path.relative_to(folder).as_posix(), ()):
                path.unlink(missing_ok=True)
    return folder


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob("*/*.nb[ic]") if path.is_file()}
