"""Memory of the devices that this process computes on."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import jax


def memory() -> dict[str, int]:
    """``memory_bytes`` in use and ``memory_peak_bytes`` since the process began, of the fullest of its devices.

    Where a device does not tell, as a CPU does not, they are those of the whole process.
    """
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    if all("bytes_in_use" in stats for stats in told):
        in_use = max(stats["bytes_in_use"] for stats in told)
        peak = max(stats.get("peak_bytes_in_use", stats["bytes_in_use"]) for stats in told)
        return {"memory_bytes": in_use, "memory_peak_bytes": peak}
    # Kibibytes everywhere but on macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return {"memory_peak_bytes": peak}
    in_use = int(statm.read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    # The kernel counts the two at different moments.
    return {"memory_bytes": in_use, "memory_peak_bytes": max(peak, in_use)}
