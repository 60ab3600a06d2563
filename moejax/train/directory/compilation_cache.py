"""Keep JAX's compilation cache in a folder, and load only programs that are exactly as written.

JAX's key of a program covers versions, flags, devices and the computation. It does not cover the processor, whose
instructions a CPU program uses, or the number of threads, by which its loops are split. These determine the name of a
subfolder. JAX writes in place without checks, so the hash of every program is recorded after it is written
(``moejax.folder.note``). At the next start, a file without a matching hash is removed and compiled again.
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
from moejax.folder import note, noted, sha256
from moejax.stored import check_writable

MOST_PROGRAMS = 1_000
"""Maximum number of compiled programs in a folder."""

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.02,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # XLA's own GPU caches are not checked, and a cached program needs none of them.
    "jax_persistent_cache_enable_xla_caches": "none",
}
"""JAX settings while programs are kept."""

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event after a program was compiled and written, or loaded."""

_MARK = re.compile(r"[0-9a-f]{16}")
"""Pattern of ``processor_mark``."""


def processor_mark(beside: Sequence[str] = ()) -> str:
    """Return a name for this processor with all its instructions, and for everything else in ``beside``."""
    information, told = Path("/proc/cpuinfo"), [platform.machine(), *beside]
    if information.exists():
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
        told += sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def remove_oldest(folder: Path) -> None:
    """Remove the oldest programs above ``MOST_PROGRAMS``.

    Raises:
      OSError: the system cannot.
    """
    kept = sorted(_programs(folder), key=lambda path: path.stat().st_mtime)
    for oldest in kept[: max(0, len(kept) - MOST_PROGRAMS)]:
        oldest.unlink(missing_ok=True)


def pass_over_damage() -> None:
    """Suppress warnings about programs that cannot be read or written, because the disk is full or another process
    writes them. They are compiled instead.
    """
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def remove_damaged(programs: Path) -> None:
    """Remove every program below a folder without a matching hash. One process does this before any process loads one.

    The folder may be any that the user names, so files not named as programs are left alone.
    """
    with contextlib.suppress(OSError, UserError):
        for folder in (path for path in programs.iterdir() if _MARK.fullmatch(path.name) and path.is_dir()):
            known = noted(folder)
            for path in _programs(folder):
                if sha256(path) not in known.get(path.name, ()):
                    path.unlink(missing_ok=True)
            remove_oldest(folder)


@contextlib.contextmanager
def keep_programs(programs: Path, *, writes: bool = True, beside: Sequence[str] = ()) -> Iterator[None]:
    """Keep JAX's compiled programs below ``programs`` within this context, and load those checked by
    ``remove_damaged``.

    A folder chosen by the user (``JAX_COMPILATION_CACHE_DIR``, ``JAX_ENABLE_COMPILATION_CACHE``) takes precedence. If
    the folder is not writable, no program is kept.

    Args:
      writes: True in the process that writes; of several, JAX lets only the first one write.
      beside: further things that determine programs but are not in JAX's key.
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
    listener = _Noting(folder) if writes else _nothing
    # A process that trained in another folder still has that folder's cache open.
    compilation_cache.reset_cache()
    for name, value in {**SETTINGS, "jax_compilation_cache_dir": str(folder)}.items():
        jax.config.update(name, value)
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


class _Noting:
    """A recorder of the hashes of new programs."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen = {path.name for path in _programs(folder)}

    def __call__(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            # If the disk is full, programs without a hash are compiled again.
            with contextlib.suppress(OSError, UserError):
                for path in _programs(self._folder):
                    if path.name not in self._seen:
                        note(self._folder, path.name, path)
                        self._seen.add(path.name)


def _nothing(event: str, duration_secs: float, **kwargs: str | int) -> None: ...


def _programs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*-cache") if path.is_file())


def _is_writable(folder: Path) -> bool:
    try:
        check_writable(folder)
        noted(folder)
    except (OSError, UserError):
        return False
    return True
