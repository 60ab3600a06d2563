"""The platform that a program is traced for, which need not be the one it is traced on."""

from __future__ import annotations

import jax

GENERATIONS = {"A100": 8, "H100": 9, "H200": 9, "H800": 9, "GH200": 9, "B200": 10, "GB200": 10}
"""Whole part of the compute capability by a word of what JAX calls a GPU."""


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``: that of the devices of ``jax.set_mesh``, or without a mesh the default backend's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def gpu_generation() -> int:
    """Whole part of the compute capability of the program's GPUs: 8 for Ampere, 9 Hopper, 10 Blackwell; 0 without, and
    for those of others than NVIDIA.

    A GPU that is here says it itself; one that is only compiled for is known by its name.
    """
    if platform() != "gpu":
        return 0
    if jax.default_backend() == "gpu":
        # An AMD GPU says the name of its architecture there, as gfx942.
        whole = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")[0]
        return int(whole) if whole.isdigit() else 0
    device = jax.sharding.get_abstract_mesh().abstract_device
    words = () if device is None else device.device_kind.replace("-", " ").split()
    return next((GENERATIONS[word] for word in words if word in GENERATIONS), 0)
