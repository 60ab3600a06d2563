"""How the C library hands out memory: a training step asks for the same large pieces again and again."""

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
    """Whether JAX is going to compute on the CPU, as far as can be told before it starts: ``JAX_PLATFORMS`` names the
    CPU first, or names nothing, and this machine has no accelerator among its ``devices`` or JAX no plugin for one."""
    asked_for = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
    if asked_for:
        return asked_for == "cpu"
    return not (_has_plugin() and any(any(devices.glob(name)) for name in ACCELERATORS))


def _has_plugin() -> bool:
    """Whether JAX finds what computes on other devices than CPUs: packages in ``jax_plugins``, or libtpu."""
    return any(find_spec(name) for name in ("jax_plugins", "libtpu")) or bool(entry_points(group="jax_plugins"))


def keep_memory(devices: int = 1) -> None:
    """Have glibc keep freed memory for this process; nothing where the C library is another.

    Otherwise every step on a CPU gets its working memory from the system anew and meets each page for the first time,
    which takes a fifth of a step at 500 MB of it. Call this before threads are started, and not where an accelerator
    computes (``computes_on_cpu``): the memory of its host holds what is read, sent and saved, which should go back to
    the system, and its many threads would wait for one arena.

    One device has one arena: large pieces of others go back to the system whatever else is set. Of several
    ``devices``, each has one of its own beside that: their threads would wait for each other at every small piece,
    which takes a third of a step of two devices.
    """
    mallopt = _of_glibc("mallopt")
    arenas = 1 if devices == 1 else devices + 1
    for parameter, value in ((M_ARENA_MAX, arenas), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 2**28)):
        mallopt(parameter, value)


def release_memory() -> None:
    """Give the system once what is free now; nothing where the C library is not glibc.

    A compilation leaves hundreds of MB of small free pieces behind, into which no array of a step fits.
    """
    _of_glibc("malloc_trim")(0)


def _of_glibc(name: str) -> Callable[..., Any]:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return lambda *_: None
