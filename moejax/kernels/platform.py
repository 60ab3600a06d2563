"""Determine the platform for which a program is traced, which may differ from the tracing process's platform."""

from __future__ import annotations

import jax

GENERATIONS = {"A100": 8, "H100": 9, "H200": 9, "H800": 9, "GH200": 9, "B200": 10, "GB200": 10}
"""Major compute capability, keyed by a word in JAX's name of the GPU."""


def platform() -> str:
    """Return ``cpu``, ``gpu`` or ``tpu``: the platform of ``jax.set_mesh``'s devices, or of the default backend without
    a mesh.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def gpu_generation() -> int:
    """Return the major compute capability of the program's GPUs: 8 for Ampere, 9 Hopper, 10 Blackwell.

    The result is 0 without GPUs, and for GPUs of other vendors. A local GPU reports its capability; a compile-only
    target is identified by its name.
    """
    if platform() != "gpu":
        return 0
    if jax.default_backend() == "gpu":
        # An AMD GPU reports its architecture's name here, such as gfx942.
        whole = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")[0]
        return int(whole) if whole.isdecimal() else 0
    device = jax.sharding.get_abstract_mesh().abstract_device
    words = () if device is None else device.device_kind.replace("-", " ").split()
    return next((GENERATIONS[word] for word in words if word in GENERATIONS), 0)
