"""JAX's compilation cache in a folder of ours: a program is found again where all that decides it is the same, and
nothing is loaded that is not what was written.

JAX's key of a program tells versions, flags, devices and the computation apart. It tells neither processors apart,
whose instructions a program for a CPU has, nor numbers of threads, for which its loops are cut: these name a folder of
their own. JAX writes in place and checks nothing, so the hash of every program is noted once it is written
(``moejax.folder.note``), and at the next start a file without a note, or with other bytes, is removed and compiled
anew.
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
"""How many compiled programs a folder keeps."""

SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.02,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # XLA's own caches of a GPU lie beside the programs, and nothing checks them: a kept program needs neither.
    "jax_persistent_cache_enable_xla_caches": "none",
}
"""Of JAX, while it keeps programs."""

_COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event after a program was compiled and written, or found."""

_MARK = re.compile(r"[0-9a-f]{16}")
"""The form of ``processor_mark``."""


def processor_mark(beside: Sequence[str] = ()) -> str:
    """A name for this processor, with all the instructions that it has, and for what else decides its programs."""
    information, told = Path("/proc/cpuinfo"), [platform.machine(), *beside]
    if information.exists():
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
        told += sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def remove_oldest(folder: Path) -> None:
    """Remove the oldest of too many programs.

    Raises:
      OSError: the system cannot.
    """
    kept = sorted(_programs(folder), key=lambda path: path.stat().st_mtime)
    for oldest in kept[: max(0, len(kept) - MOST_PROGRAMS)]:
        oldest.unlink(missing_ok=True)


def pass_over_damage() -> None:
    """Say nothing of a program that cannot be read or written, for want of room or because another process writes it:
    it is compiled then."""
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")


def remove_damaged(programs: Path) -> None:
    """Remove every program below a folder that is not as it was noted. One process does this, before any loads one.

    The folder may be any that the user names: what is not called as a program is left alone.
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
    """While this lasts, JAX keeps what it compiles below ``programs``, and finds what is there, once
    ``remove_damaged`` has looked through it.

    Where the user has chosen another folder, or none (``JAX_COMPILATION_CACHE_DIR``, ``JAX_ENABLE_COMPILATION_CACHE``),
    that stays. Where nothing can be written, nothing is kept.

    Args:
      writes: of several processes, JAX has the first alone write.
      beside: what decides programs here and is in no key of JAX's.
    """
    # Only here, as commands without JAX name folders by this module.
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
    # A process that trained in another folder has that one open.
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
    """Notes programs as soon as they are written."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen = {path.name for path in _programs(folder)}

    def __call__(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED:
            # A full disk: what has no note is compiled again.
            with contextlib.suppress(OSError, UserError):
                for path in _programs(self._folder):
                    if path.name not in self._seen:
                        note(self._folder, path.name, path)
                        self._seen.add(path.name)


def _nothing(event: str, duration_secs: float, **kwargs: str | int) -> None: ...


def _programs(folder: Path) -> list[Path]:
    """Files that are called as JAX calls programs."""
    return sorted(path for path in folder.glob("*-cache") if path.is_file())


def _is_writable(folder: Path) -> bool:
    try:
        check_writable(folder)
        noted(folder)
    except (OSError, UserError):
        return False
    return True
