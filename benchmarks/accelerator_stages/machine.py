"""Record the machine: device, driver and versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from accelerator_stages.cases import Cases, LeftOut, Row
from accelerator_stages.packages import USED_IF_THERE, required, version

SMI = ("name", "driver_version", "memory.total", "clocks.max.sm", "clocks.sm", "power.limit", "temperature.gpu")


def main(cases: Cases) -> None:
    """Record versions first, since they are available even if JAX does not start."""
    cases.measure("versions", versions)
    cases.measure("driver", driver)
    cases.measure("device", device)


def versions() -> Row:
    pyproject = Path(__file__).resolve().parents[2] / "pyproject.toml"
    names = [
        *(one.name for one in required(pyproject)),
        *USED_IF_THERE,
        "jaxlib",
        "jax-cuda13-plugin",
        "nvidia-cudnn-cu13",
        "triton",
    ]
    found = {name: version(name) for name in names}
    return {
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "jax": found["jax"],
        "versions": {name: there for name, there in found.items() if there},
        "executable": sys.executable,
    }


def driver() -> Row:
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise LeftOut(f"nvidia-smi does not answer: {error}") from error
    values = dict(zip(SMI, (value.strip() for value in said.splitlines()[0].split(",")), strict=False))
    return {name.replace(".", "_"): value for name, value in values.items()} | {"gpus": len(said.splitlines())}


def device() -> Row:
    import jax

    from accelerator_stages.timing import chip

    first, known = jax.devices()[0], chip()
    stats = first.memory_stats() or {}
    return {
        "platform": first.platform,
        "device": first.device_kind,
        "devices": jax.device_count(),
        "runtime": str(getattr(first.client, "platform_version", "")).replace("\n", " "),
        "memory_bytes": stats.get("bytes_limit"),
        "peak_tflops_per_second": known and known.flops_per_second / 1e12,
        # The rate is 0 if the maker does not state it.
        "peak_gigabytes_per_second": (known and known.memory_bytes_per_second / 1e9) or None,
    }
