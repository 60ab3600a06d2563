"""Without a TPU, JAX is not let ask libtpu for one: libtpu then writes pages to stderr, and the command waits for it.

libtpu is installed to compile for TPUs that nobody has (``moejax[plan]``), which needs none of this.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import MutableMapping
from pathlib import Path

ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia*", "dxg", "kfd")
"""Below ``/dev``, what libtpu opens on machines with TPUs, and what drivers of GPUs make."""


def keep_quiet(environment: MutableMapping[str, str] = os.environ, devices: Path = Path("/dev")) -> None:
    """Have JAX compute on the CPU where libtpu is installed and there is nothing else; what the user has set stays."""
    if "JAX_PLATFORMS" in environment or "JAX_FORCE_TPU_INIT" in environment:
        return
    if importlib.util.find_spec("libtpu") is None:
        return
    if not any(list(devices.glob(name)) for name in ACCELERATORS):
        environment["JAX_PLATFORMS"] = "cpu"
