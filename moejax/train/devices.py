"""Describe the devices of a training run: their chip, XLA options, supported matmul types, speed and memory use."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import jax
from jax.sharding import Mesh

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.kernels.grouped_matmul.megablox import LANES
from moejax.kernels.quantization import TYPES
from moejax.kernels.table import TOKAMAX, has_tokamax
from moejax.laws.accounting import flops_per_token
from moejax.laws.chips import CHIPS, Chip
from moejax.model.runtime import Runtime
from moejax.train.training import Training
from moejax.wording import install_command, listed

CHIP_OF_DEVICE = {
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA H800": "h800",
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}
"""Name of the chip in ``moejax.laws.chips`` for each of JAX's device kinds."""

XLA_OPTIONS: dict[str, dict[str, str]] = {
    "v5p": {
        # On-chip memory that one kernel may use, in KiB. By default, XLA reserves most of it for prefetching. MoE
        # models move rows of tokens, and kernels with more memory move them in fewer pieces. MaxText uses this limit.
        "xla_tpu_scoped_vmem_limit_kib": "81920",
        # Split a gather into start and done, so that other work can run in between.
        "xla_enable_async_all_gather": "true",
        # Fuse collectives, including all-gathers of weights, into concurrent kernels, ...
        "xla_tpu_enable_async_collective_fusion": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        # ... and let one collective extend over several kernels.
        "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
        # Let the TensorCores compute during a collective.
        "xla_tpu_overlap_compute_collective_tc": "true",
    }
}
"""XLA compiler options, keyed by the chip's name in ``moejax.laws.chips.CHIPS``; ``runtime.xla_options`` enables them.
docs/plans.md describes the effect of each option on a compiled program. XLA's defaults are omitted.
"""


def options_of(chip: str, runtime: Runtime) -> dict[str, str]:
    """Return a chip's XLA options, keyed by option name; an empty dict if the runtime disables them."""
    return XLA_OPTIONS.get(chip, {}) if runtime.xla_options == "auto" else {}


def compiler_options(mesh: Mesh, runtime: Runtime) -> dict[str, str] | None:
    """Return the ``compiler_options`` of ``jax.jit`` for programs on a mesh, keyed by option name; None if the chip has
    no options.
    """
    kind = mesh.devices.flat[0].device_kind
    return options_of(CHIP_OF_DEVICE.get(kind, ""), runtime) or None


def without_mfu() -> str:
    """Return a message if the MFU is unknown because no table lists the accelerator; otherwise an empty string."""
    device = jax.devices()[0]
    if device.platform == "cpu" or device.device_kind in CHIP_OF_DEVICE:
        return ""
    return (
        f"The MFU is unknown, because no chip table lists {device.device_kind!r}; see 'Add a chip' in CONTRIBUTING.md."
    )


class Speed:
    """The speed of one training run on the devices of its mesh."""

    def __init__(self, training: Training):
        self._flops = flops_per_token(training.architecture, training.recipe.data.sequence_length).training_causal
        chip = CHIPS.get(CHIP_OF_DEVICE.get(jax.devices()[0].device_kind, ""))
        self._peak = chip.device.flops_per_second * jax.device_count() if chip else None

    def of(self, tokens: int, seconds: float) -> dict[str, float]:
        """Return ``tokens_per_second`` and, for a known chip, ``mfu``. The MFU is the rate of the model's FLOPs,
        without the masked half of the attention scores, as a share of the chips' bfloat16 peak. Plans use the same
        definition.
        """
        if seconds <= 0:
            return {}
        rate = tokens / seconds
        return {"tokens_per_second": rate} | ({} if self._peak is None else {"mfu": self._flops * rate / self._peak})


def check_products(runtime: Runtime, chip: Chip) -> None:
    """Raise ``UserError`` if a chip does not support matmuls in the runtime's 8-bit type."""
    quantization = runtime.matmul_quantization
    if quantization != "none" and not chip.peak(quantization):
        has = [name for name in TYPES if chip.peak(name)]
        raise UserError(
            f"runtime.matmul_quantization is {quantization!r}, but {chip.name} does not support such matmuls; choose "
            f"{listed([*map(repr, has), repr('none')], 'or')}, or another chip."
        )


def check_quantization(architecture: Architecture, runtime: Runtime, chip_name: str) -> None:
    """Raise ``UserError`` if the chip with this name in ``CHIPS`` cannot run the runtime's 8-bit matmuls: it does not
    support the type, the kernel is not installed, or the experts are too narrow. Unknown devices, such as CPUs, are not
    checked.
    """
    quantization, chip = runtime.matmul_quantization, CHIPS.get(chip_name)
    if quantization == "none" or chip is None:
        return
    check_products(runtime, chip)
    if not (chip.torus_dimensions and architecture.is_moe):
        return
    if not has_tokamax():
        raise UserError(
            f"On a TPU, experts with runtime.matmul_quantization = {quantization!r} need tokamax {TOKAMAX}, which is "
            f"not installed. Run {install_command('quantization')}, or choose 'none'."
        )
    if (narrow := min(architecture.model_dim, architecture.expert_hidden)) < LANES:
        raise UserError(
            f"The experts' matmuls have a dimension of {narrow}; with runtime.matmul_quantization = "
            f"{quantization!r} a TPU's kernel needs at least {LANES}. Choose 'none', or increase model_dim and "
            "expert_hidden."
        )


def memory() -> dict[str, int]:
    """Return ``memory_bytes`` in use and ``memory_peak_bytes`` since the process started, for the device with the
    highest use.

    For devices without memory statistics, such as CPUs, the values describe the whole process.
    """
    told = [device.memory_stats() or {} for device in jax.local_devices()]
    if all("bytes_in_use" in stats for stats in told):
        in_use = max(stats["bytes_in_use"] for stats in told)
        peak = max(stats.get("peak_bytes_in_use", stats["bytes_in_use"]) for stats in told)
        return {"memory_bytes": in_use, "memory_peak_bytes": peak}
    # The unit is KiB on all systems except macOS.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return {"memory_peak_bytes": peak}
    in_use = int(statm.read_text(encoding="utf-8").split()[1]) * resource.getpagesize()
    # The kernel updates the two counters at different moments.
    return {"memory_bytes": in_use, "memory_peak_bytes": max(peak, in_use)}
