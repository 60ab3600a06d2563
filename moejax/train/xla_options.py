"""Define XLA compiler options for each kind of chip, each with its reason; ``runtime.xla_options`` enables them.

docs/plans.md describes the effect of each option on a compiled program. Options that are XLA's defaults are omitted.
"""

from __future__ import annotations

from jax.sharding import Mesh

from moejax.model.runtime import Runtime
from moejax.train.devices import CHIP_OF_DEVICE

OPTIONS: dict[str, dict[str, str]] = {
    "v5p": {
        # KiB of on-chip memory that one kernel may use for itself; XLA reserves most of it for prefetching. Mixtures of
        # experts move rows, and large kernels move them in fewer pieces. MaxText uses this limit for them.
        "xla_tpu_scoped_vmem_limit_kib": "81920",
        # Split a gather into start and done, so that other work can run in between.
        "xla_enable_async_all_gather": "true",
        # Fuse collectives, including all-gathers of weights, into concurrent kernels, ...
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        # ... and let one collective extend over several kernels.
        "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
        # The TensorCores drive the collective meanwhile.
        "xla_tpu_overlap_compute_collective_tc": "true",
    }
}
"""Options by the names of ``moejax.laws.chips.CHIPS``; chips that are not listed have none."""


def options_of(chip: str, runtime: Runtime) -> dict[str, str]:
    """Return the XLA options of a chip; an empty dict if the runtime disables them."""
    return OPTIONS.get(chip, {}) if runtime.xla_options == "auto" else {}


def compiler_options(mesh: Mesh, runtime: Runtime) -> dict[str, str] | None:
    """Return the ``compiler_options`` of ``jax.jit`` for programs on a mesh; None for none."""
    kind = mesh.devices.flat[0].device_kind
    return options_of(CHIP_OF_DEVICE.get(kind, ""), runtime) or None


def as_flags(options: dict[str, str]) -> str:
    """Return the options in the format of libtpu's environment variable ``LIBTPU_INIT_ARGS``."""
    return " ".join(f"--{name}={value}" for name, value in options.items())
