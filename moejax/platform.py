"""The platform that a program is traced for, which need not be the one it is traced on."""

from __future__ import annotations

import jax


def platform() -> str:
    """``cpu``, ``gpu`` or ``tpu``: that of the devices of ``jax.set_mesh``, or without a mesh the default backend's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
