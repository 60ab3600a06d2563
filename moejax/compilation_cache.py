"""Keep JAX's compilation cache in a folder.

JAX's cache key covers versions, flags, devices and the computation. It does not cover the processor's instruction set
or the number of threads, although compiled CPU programs depend on both. The name of a subfolder therefore identifies
both. JAX writes in place and never replaces a file. A partly written file of a killed process is therefore removed;
otherwise its program would be compiled at every start.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from moejax.errors import UserError
from moejax.stored import check_writable

MOST_PROGRAMS = 1_000
"""Maximum number of compiled programs in a folder."""

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.02,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # A cached program needs none of XLA's own GPU caches.
    "jax_persistent_cache_enable_xla_caches": "none",
}
"""JAX settings while programs are kept."""

_MARK = re.compile(r"[0-9a-f]{16}")
"""Pattern of ``processor_mark``."""


def processor_mark(beside: Sequence[str] = ()) -> str:
    """Return a name that identifies the processor, its instruction set and the values of ``beside``."""
    information, told = Path("/proc/cpuinfo"), [platform.machine(), *beside]
    if information.exists():
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
        told += sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def remove_oldest(folder: Path) -> None:
    """Remove the oldest programs beyond ``MOST_PROGRAMS``.

    Raises:
      OSError: a file cannot be removed.
    """
    kept = sorted(folder.glob("*-cache"), key=lambda path: path.stat().st_mtime)
    for oldest in kept[: max(0, len(kept) - MOST_PROGRAMS)]:
        oldest.unlink(missing_ok=True)


def pass_over_damage() -> None:
    """Suppress warnings about programs that cannot be read or written, because the disk is full or another process
    writes them. JAX compiles such programs instead.
    """
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def remove_damaged(programs: Path) -> None:
    """Remove every program below a folder that JAX cannot decompress.

    One process calls this before any process loads a program.

    The folder may be any folder that the user names, so files not named as programs are left alone.
    """
    from jax._src.compilation_cache import decompress_executable

    with contextlib.suppress(OSError):
        for folder in (path for path in programs.iterdir() if _MARK.fullmatch(path.name)):
            for path in folder.glob("*-cache"):
                try:
                    decompress_executable(path.read_bytes())
                # The exception depends on the library that JAX finds.
                except Exception:
                    path.unlink()
            remove_oldest(folder)


@contextlib.contextmanager
def keep_programs(programs: Path, *, writes: bool = True, beside: Sequence[str] = ()) -> Iterator[None]:
    """Keep JAX's compiled programs below ``programs`` within this context, and load those checked by
    ``remove_damaged``.

    A folder chosen by the user (``JAX_COMPILATION_CACHE_DIR``, ``JAX_ENABLE_COMPILATION_CACHE``) takes precedence. If
    the folder is not writable, no program is kept.

    Args:
      writes: True in the process that writes; JAX lets only the first of several processes write.
      beside: further values on which compiled programs depend, but which JAX's key does not cover.
    """
    # The import is local, since commands without JAX use this module to name folders.
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    folder = programs / processor_mark(beside)
    names = (*SETTINGS, "jax_compilation_cache_dir", "jax_enable_compilation_cache")
    before = {name: getattr(jax.config, name) for name in names}
    chosen = before["jax_compilation_cache_dir"] or not before["jax_enable_compilation_cache"]
    if chosen or (writes and not _is_writable(folder)):
        yield
        return
    pass_over_damage()
    # A process that trained in another folder still has that folder's cache open.
    compilation_cache.reset_cache()
    for name, value in {**SETTINGS, "jax_compilation_cache_dir": str(folder)}.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _is_writable(folder: Path) -> bool:
    try:
        check_writable(folder)
    except UserError:
        return False
    return True
