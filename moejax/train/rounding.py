"""Fix and record what affects rounding of sums other than settings, seed and mesh.

On a CPU, XLA splits the loops of a program by its number of threads, by default the number of visible cores. The last
bits of a sum would thus depend on the machine and the scheduler. A training therefore uses the same number of threads
everywhere; the number of cores affects only the speed. The processor type also matters, because libraries adapt their
sums to its vectors and caches, as does the type of accelerator. Both are recorded for all processes, and a restart on
other types logs a message. On NVIDIA GPUs, the order of sums is fixed only with an XLA flag.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from moejax.train.allocator import computes_on_cpu

THREADS = 4
"""Number of XLA's threads on a CPU, independent of the number of cores."""


_NPROC = "NPROC"
"""Environment variable that XLA reads before it counts cores (`DefaultThreadPoolSize` of xla/pjrt/utils.cc)."""

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
"""Value in ``XLA_FLAGS`` that makes GPU programs add in the same order at every run and compilation."""


def fix_threads(threads: int | None = None) -> None:
    """Set the number of XLA's threads on a CPU; the default is ``NPROC`` or else ``THREADS``.

    With more devices than threads, XLA uses one thread per device. This has no effect on accelerators or if JAX has
    already initialized devices.
    """
    if computes_on_cpu():
        os.environ[_NPROC] = str(threads or os.environ.get(_NPROC) or THREADS)


def unfixed() -> str | None:
    """Return a message with a remedy if the last bits depend on the number of cores; None if they do not."""
    wanted = max(int(os.environ.get(_NPROC) or 0), jax.local_device_count())
    if jax.default_backend() != "cpu" or _threads() == wanted:
        return None
    return (
        f"JAX had devices before this training began, with {_threads()} threads for the cores that this process sees, "
        f"and the last bits of numbers depend on how many: for those of any machine, call "
        f"moejax.train.rounding.fix_threads() before JAX is used, or set {_NPROC}={THREADS}."
    )


def rounding() -> dict[str, str]:
    """Return the properties of this process that affect rounding. On a CPU: the type of processor and the number of
    XLA's threads. Otherwise: the kind of device and XLA's flags, and for a GPU whether they fix the order of sums."""
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
    return [f"{_threads()} threads"] if jax.default_backend() == "cpu" else []


def _adds_in_order(flags: str) -> bool:
    """Return whether XLA's flags fix the order of sums. XLA uses the last of repeated flags, and a flag without a value
    is true."""
    name = DETERMINISTIC.partition("=")[0]
    values = [value for flag, _, value in (one.partition("=") for one in flags.split()) if flag == name]
    return bool(values) and values[-1].lower() in ("", "true", "1")


def of_all(every: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Merge the properties of all processes, in order: one value if they agree, otherwise run-length encoded values."""
    names = list(dict.fromkeys(name for one in every for name in one))
    return {name: _in_rows([one.get(name, "none") for one in every]) for name in names}


def _in_rows(values: Sequence[str]) -> str:
    rows = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    return values[0] if len(rows) == 1 else ", then ".join(f"{count} × {value}" for value, count in rows)


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
    """Return the number of threads that XLA has started, counted by name, or else the requested number."""
    jax.devices()
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # The thread has ended meanwhile.
            names.append(path.read_text().strip())
    found = sum(name.endswith("XLAEigen") for name in names)
    return found or int(os.environ.get(_NPROC) or os.cpu_count() or 1)
