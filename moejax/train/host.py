"""Configure and describe the process that hosts a training run: threads, memory, and what affects the rounding of sums.

On a CPU, XLA splits the loops of a program by its number of threads, by default the number of visible cores. The last
bits of a sum would thus depend on the machine and its scheduler. A training run therefore uses the same number of
threads everywhere; the number of cores affects only the speed. The processor type also affects rounding, because
libraries adapt their sums to vector width and caches. So does the accelerator type. Both types are recorded for all
processes, and a restart on other types logs a message. On NVIDIA GPUs, only an XLA flag fixes the order of sums.

The functions that must run before JAX starts do not import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

THREADS = 4
"""Number of XLA's threads on a CPU, for any number of cores."""

_NPROC = "NPROC"
"""Environment variable that XLA reads before it counts cores (`DefaultThreadPoolSize` of xla/pjrt/utils.cc)."""

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
"""XLA flag that makes GPU programs add in the same order in every run and compilation."""

ACCELERATORS = ("nvidia[0-9]*", "nvidiactl", "dxg", "kfd", "accel[0-9]*", "accel/accel[0-9]*", "vfio/[0-9]*")
"""Patterns of device files in ``/dev``: GPUs of NVIDIA (``dxg`` under WSL) and AMD, and TPUs."""

# Parameters of mallopt, as defined in glibc's <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8


def computes_on_cpu(devices: Path = Path("/dev")) -> bool:
    """Predict, before JAX starts, whether JAX will compute on the CPU. This holds if ``JAX_PLATFORMS`` names the CPU
    first. It also holds if the variable is empty and either this machine has no accelerator among its ``devices`` or
    JAX has no plugin for one.
    """
    asked_for = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
    if asked_for:
        return asked_for == "cpu"
    return not (_has_plugin() and has_accelerator(devices))


def has_accelerator(devices: Path = Path("/dev")) -> bool:
    """Return whether this machine has a device file of a GPU or TPU."""
    return any(any(devices.glob(name)) for name in ACCELERATORS)


def _has_plugin() -> bool:
    # The import is local, since it would take a third of the time of --help.
    from importlib.metadata import entry_points

    return any(find_spec(name) for name in ("jax_plugins", "libtpu")) or bool(entry_points(group="jax_plugins"))


def keep_memory(devices: int = 1) -> None:
    """Make glibc keep freed memory in this process; do nothing with another C library.

    By default, every step on a CPU requests its working memory from the system and page-faults on it. This takes a
    fifth of a step at 500 MB. Call this before threads are started. Do not call it with an accelerator (see
    ``computes_on_cpu``): the host's memory then holds only data in transit, which should return to the system, and the
    host's many threads would contend for one arena.

    One device uses one arena, because large blocks of other arenas always return to the system. With several
    ``devices``, each gets an additional arena. If their threads shared one arena, they would contend for every small
    allocation; on two devices, this takes a third of the step time.
    """
    arenas = 1 if devices == 1 else devices + 1
    for parameter, value in ((M_ARENA_MAX, arenas), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 2**28)):
        _call_glibc("mallopt", parameter, value)


def release_memory() -> None:
    """Return free memory to the system once; do nothing if the C library is not glibc.

    A compilation leaves hundreds of MB in free blocks that are too small for the arrays of a step.
    """
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *arguments: int) -> None:
    with contextlib.suppress(OSError, AttributeError, TypeError):
        getattr(ctypes.CDLL(None), name)(*arguments)


def fix_threads(threads: int | None = None) -> None:
    """Set the number of XLA's threads on a CPU; the default is ``NPROC`` or else ``THREADS``.

    With more devices than threads, XLA uses one thread per device. This has no effect on accelerators or if JAX has
    already initialized devices.
    """
    if computes_on_cpu():
        os.environ[_NPROC] = str(threads or os.environ.get(_NPROC) or THREADS)


def unfixed() -> str | None:
    """Return a warning with a remedy if the last bits of results depend on the number of cores; otherwise None."""
    import jax

    wanted = max(int(os.environ.get(_NPROC) or 0), jax.local_device_count())
    if jax.default_backend() != "cpu" or _threads() == wanted:
        return None
    return (
        f"JAX was initialized before this training run began, with {_threads()} threads for the visible cores, so the "
        f"last bits of numbers depend on the number of cores. For the same numbers on every machine, call "
        f"moejax.train.host.fix_threads() before JAX is used, or set {_NPROC}={THREADS}."
    )


def rounding() -> dict[str, str]:
    """Return the properties of this process that affect rounding, keyed by name. On a CPU: the type of processor and
    the number of XLA's threads. On an accelerator: the kind of device and XLA's flags, and for a GPU whether they fix
    the order of sums.
    """
    import jax

    if jax.default_backend() == "cpu":
        return {"processor": processor(), "threads": str(_threads())}
    found = {"device": ", ".join(sorted({device.device_kind for device in jax.local_devices()}))}
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() == "gpu":
        found["deterministic"] = "yes" if _adds_in_order(flags) else "no"
    return found | ({"XLA_FLAGS": " ".join(flags.split())} if flags.strip() else {})


def decides_programs() -> list[str]:
    """Return properties that affect compiled programs but are not in JAX's cache key: on a CPU the number of
    threads."""
    import jax

    return [f"{_threads()} threads"] if jax.default_backend() == "cpu" else []


def _adds_in_order(flags: str) -> bool:
    # XLA uses the last of repeated flags, and a flag without a value is true.
    name = DETERMINISTIC.partition("=")[0]
    values = [value for flag, _, value in (one.partition("=") for one in flags.split()) if flag == name]
    return bool(values) and values[-1].lower() in ("", "true", "1")


def of_all(every: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Merge the properties of all processes, given in order, and key them by name: one value if they agree, otherwise
    run-length encoded values.
    """

    def merged(values: list[str]) -> str:
        rows = [(value, len(list(same))) for value, same in itertools.groupby(values)]
        return values[0] if len(rows) == 1 else ", then ".join(f"{count} × {value}" for value, count in rows)

    names = dict.fromkeys(name for one in every for name in one)
    return {name: merged([one.get(name, "none") for one in every]) for name in names}


def processor(information: Path = Path("/proc/cpuinfo")) -> str:
    """Return the type of this machine's processor: Linux's model name with its family, model and widest vectors."""
    if not information.exists():
        return platform.processor() or platform.machine()
    lines = information.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    # Arm kernels report numbers for a core's type instead of a name.
    named = [facts.get("model name") or f"{facts.get('CPU implementer', '')} {facts.get('CPU part', '')}"]
    named += [f"{name} {facts[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    named += [next((flag for flag in ("avx512f", "avx2", "sve2", "sve", "asimd") if flag in flags), "")]
    return ", ".join(filter(None, map(str.strip, named))) or platform.machine()


def _threads() -> int:
    """Return the number of XLA's threads, counted by thread name, or else the requested number."""
    import jax

    jax.devices()
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # The thread has ended meanwhile.
            names.append(path.read_text().strip())
    found = sum(name.endswith("XLAEigen") for name in names)
    return found or int(os.environ.get(_NPROC) or os.cpu_count() or 1)
