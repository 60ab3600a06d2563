"""Configure the C library's memory allocator: every training step allocates the same large arrays again."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Names and numbers of <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8

ACCELERATORS = ("nvidia[0-9]*", "nvidiactl", "dxg", "kfd", "accel[0-9]*", "accel/accel[0-9]*", "vfio/[0-9]*")
"""Device files of NVIDIA's GPUs (``dxg``: under WSL), of AMD's and of TPUs, within ``/dev``."""


def computes_on_cpu(devices: Path = Path("/dev")) -> bool:
    """Return whether JAX will compute on the CPU, as far as this is known before JAX starts. This holds if
    ``JAX_PLATFORMS`` names the CPU first. It also holds if the variable is empty and either this machine has no
    accelerator among its ``devices`` or JAX has no plugin for one."""
    asked_for = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
    if asked_for:
        return asked_for == "cpu"
    return not (_has_plugin() and any(any(devices.glob(name)) for name in ACCELERATORS))


def _has_plugin() -> bool:
    """Return whether JAX has a backend other than the CPU: packages in ``jax_plugins``, or libtpu."""
    return any(find_spec(name) for name in ("jax_plugins", "libtpu")) or bool(entry_points(group="jax_plugins"))


def keep_memory(devices: int = 1) -> None:
    """Make glibc keep freed memory in this process; do nothing with another C library.

    Otherwise every step on a CPU requests its working memory from the system and page-faults on it, which takes a fifth
    of a step at 500 MB. Call this before threads are started. Do not call it if an accelerator computes
    (``computes_on_cpu``): its host's memory holds data that is read, sent and saved. That memory should return to the
    system, and the host's many threads would contend for one arena.

    One device uses one arena: large pieces of other arenas return to the system whatever else is set. Each of several
    ``devices`` gets one more arena of its own. Otherwise their threads contend for every small allocation, which takes
    a third of a step of two devices.
    """
    mallopt = _of_glibc("mallopt")
    arenas = 1 if devices == 1 else devices + 1
    for parameter, value in ((M_ARENA_MAX, arenas), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 2**28)):
        mallopt(parameter, value)


def release_memory() -> None:
    """Return free memory to the system once; do nothing if the C library is not glibc.

    A compilation leaves hundreds of MB of small free pieces, which are too small for the arrays of a step.
    """
    _of_glibc("malloc_trim")(0)


def _of_glibc(name: str) -> Callable[..., Any]:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return lambda *_: None
