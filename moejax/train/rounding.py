"""What decides how devices round sums, beside settings, seed and mesh.

XLA cuts the loops of a program for a CPU into as many pieces as it has threads, and has as many threads as a process
sees cores, so the last bits of a sum would depend on the machine and on what a scheduler grants. A training therefore
gives it the same number of threads everywhere; how many cores they share decides the speed alone. What is left is the
type of processor, whose vectors and caches libraries fit their sums to, or the kind of accelerator: they are recorded
for all processes, and a restart on others says so. On NVIDIA GPUs, sums are always in the same order only if XLA is
told to keep to it.
"""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

# JAX has no public name for this.
from jax._src.xla_bridge import backends_are_initialized

from moejax.train.allocator import computes_on_cpu

THREADS = 4
"""Of XLA on a CPU, whatever the number of cores."""


_NPROC = "NPROC"
"""XLA asks this variable before it asks the machine (`DefaultThreadPoolSize` of xla/pjrt/utils.cc)."""

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
"""With this in ``XLA_FLAGS``, a program for a GPU adds in the same order whenever it runs or is compiled."""


def fix_threads(threads: int | None = None) -> None:
    """Give XLA so many threads on a CPU, or one for each of more devices; without a number those that ``NPROC`` asks
    for, or ``THREADS``. Where an accelerator computes, or JAX has devices already, this changes nothing."""
    if computes_on_cpu() and not backends_are_initialized():
        os.environ[_NPROC] = str(threads or os.environ.get(_NPROC) or THREADS)


def unfixed() -> str | None:
    """Why the bits depend on the number of cores, in a sentence with the remedy; None if they do not."""
    if jax.default_backend() != "cpu" or _NPROC in os.environ:
        return None
    return (
        f"JAX had devices before this training began, with {_threads()} threads for the cores that this process sees, "
        f"and the last bits of numbers depend on how many: for those of any machine, call "
        f"moejax.train.rounding.fix_threads() before JAX is used, or set {_NPROC}={THREADS}."
    )


def rounding() -> dict[str, str]:
    """Of this process: on a CPU the type of processor and the threads that XLA has, else the kind of device, and of a
    GPU whether XLA was told to add in the same order always, and all that XLA was told."""
    if jax.default_backend() == "cpu":
        return {"processor": processor(), "threads": str(_threads())}
    found = {"device": ", ".join(sorted({device.device_kind for device in jax.local_devices()}))}
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() == "gpu":
        found["deterministic"] = "yes" if _adds_in_order(flags) else "no"
    return found | ({"XLA_FLAGS": " ".join(flags.split())} if flags.strip() else {})


def decides_programs() -> list[str]:
    """What decides a compiled program and is in no key of JAX's: of a CPU the threads for which its loops are cut."""
    return [f"{_threads()} threads"] if jax.default_backend() == "cpu" else []


def _adds_in_order(flags: str) -> bool:
    """Whether XLA is told to. Of a flag that is given twice it takes the last, and one without a value is true."""
    name = DETERMINISTIC.partition("=")[0]
    values = [value for flag, _, value in (one.partition("=") for one in flags.split()) if flag == name]
    return bool(values) and values[-1].lower() in ("", "true", "1")


def of_all(every: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What processes tell of themselves, in their order: once where they agree, else how many in a row say what."""
    names = list(dict.fromkeys(name for one in every for name in one))
    return {name: _in_rows([one.get(name, "none") for one in every]) for name in names}


def _in_rows(values: Sequence[str]) -> str:
    rows = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    return values[0] if len(rows) == 1 else ", then ".join(f"{count} × {value}" for value, count in rows)


def processor(told: Path = Path("/proc/cpuinfo")) -> str:
    """The type of this machine's processor: as Linux names it, with its family, model and widest vectors."""
    try:
        first = told.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    # Arm's kernels number a core's type where others name it.
    named = [facts.get("model name") or " ".join(facts.get(f"CPU {what}", "") for what in ("implementer", "part"))]
    named += [f"{name} {facts[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    named += [next((flag for flag in ("avx512f", "avx2", "sve2", "sve", "asimd") if flag in flags), "")]
    return ", ".join(filter(None, map(str.strip, named))) or platform.machine()


def _threads() -> int:
    """Those that XLA has started, by their name, or, where the system does not tell, those that it was asked for."""
    jax.devices()
    found = 0
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            found += name.read_text().strip().endswith("XLAEigen")
        except OSError:  # a thread that has ended meanwhile
            continue
    return found or int(os.environ.get(_NPROC) or os.cpu_count() or 1)
