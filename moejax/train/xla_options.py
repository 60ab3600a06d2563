"""Options of XLA's compiler for each kind of chip, each with its reason; ``runtime.xla_options`` takes or leaves them.

What each changed in a compiled program is in docs/plans.md. What XLA does by itself is not repeated here.
"""

from __future__ import annotations

from jax.sharding import Mesh

from moejax.model.runtime import Runtime
from moejax.train.devices import CHIP_OF_DEVICE

OPTIONS: dict[str, dict[str, str]] = {
    "v5p": {
        # KiB of the memory on the chip that one kernel may use for itself; XLA keeps most of it for what it fetches
        # ahead. Mixtures of experts move rows, and large kernels move them in fewer pieces. MaxText's limit for them.
        "xla_tpu_scoped_vmem_limit_kib": "81920",
        # A gather begins and ends apart, so that other work may run between.
        "xla_enable_async_all_gather": "true",
        # Collectives are woven into kernels that run beside them, gathers of weights among those, ...
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        # ... and one goes on over several kernels.
        "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
        # The cores that compute drive it meanwhile.
        "xla_tpu_overlap_compute_collective_tc": "true",
    }
}
"""By the names of ``moejax.laws.chips.CHIPS``; a chip that is not here has none."""


def options_of(chip: str, runtime: Runtime) -> dict[str, str]:
    """Options of a chip by their names; none if the runtime wants none."""
    return OPTIONS.get(chip, {}) if runtime.xla_options == "auto" else {}


def compiler_options(mesh: Mesh, runtime: Runtime) -> dict[str, str] | None:
    """What ``jax.jit`` takes as ``compiler_options`` for programs on a mesh; None for none."""
    kind = mesh.devices.flat[0].device_kind
    return options_of(CHIP_OF_DEVICE.get(kind, ""), runtime) or None


def as_flags(options: dict[str, str]) -> str:
    """The same as libtpu's environment variable ``LIBTPU_INIT_ARGS`` takes them."""
    return " ".join(f"--{name}={value}" for name, value in options.items())
