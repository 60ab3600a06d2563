"""Descriptions of NVIDIA GPUs that XLA needs to compile for an absent one.

The numbers are those that CUDA reports for the devices: OpenXLA's ``xla/backends/gpu/target_config/specs``, read on
2026-11-24.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuTarget:
    """One kind of GPU."""

    description: str
    """Device name of CUDA and JAX."""
    compute_capability: int
    """Major compute capability."""
    cores: int
    """Streaming multiprocessors."""
    units: int
    """Float32 units of each multiprocessor."""
    clock_ghz: float
    memory_bytes: int
    """Memory that CUDA reports, without the part that error correction uses."""
    memory_bytes_per_second: float
    l2_bytes: int
    shared_bytes: int
    """Shared memory of each multiprocessor."""

    def text(self) -> str:
        """Return XLA's ``GpuTargetConfigProto`` as text."""
        major, minor = _cudnn_version()
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49_152,
            "shared_memory_per_core": self.shared_bytes,
            "shared_memory_per_block_optin": self.shared_bytes - 1024,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": self.units,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "memory_bandwidth": int(self.memory_bytes_per_second),
            "l2_cache_size": self.l2_bytes,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": self.memory_bytes,
            "registers_per_core_limit": 2**16,
            "registers_per_block_limit": 2**16,
        }
        # Hopper and later GPUs have architecture-specific instructions, which kernels use.
        features = " feature_extension: ACCELERATED_FEATURES" if self.compute_capability >= 9 else ""
        inside = " ".join(f"{name}: {value}" for name, value in fields.items())
        inside += f" cuda_compute_capability {{ major: {self.compute_capability}{features} }}"
        versions = f"dnn_version_info {{ major: {major} minor: {minor} }} runtime_version {{ major: 13 }}"
        about = f'platform_name: "CUDA" {versions} device_description_str: "{self.description}"'
        return f"gpu_device_info {{ {inside} }} {about}"


def _cudnn_version() -> tuple[int, int]:
    """Return the version of the installed cuDNN, which programs may call; else one that supports all these GPUs."""
    try:
        major, minor, *_ = importlib.metadata.version("nvidia-cudnn-cu13").split(".")
    except importlib.metadata.PackageNotFoundError:
        return 9, 10
    return int(major), int(minor)


def has_cuda_plugin() -> bool:
    """Return whether JAX's CUDA plugin, which compiles for GPUs, is installed. No GPU is needed."""
    try:
        return importlib.util.find_spec("jax_plugins.xla_cuda13") is not None
    except ModuleNotFoundError:
        return False


TARGETS = {
    "a100": GpuTarget("NVIDIA A100-SXM4-80GB", 8, 108, 64, 1.41, 85_100_068_864, 2039.04e9, 41_943_040, 167_936),
    "h100": GpuTarget("NVIDIA H100 80GB HBM3", 9, 132, 128, 1.98, 84_942_979_072, 3352.32e9, 52_428_800, 233_472),
    "h200": GpuTarget("NVIDIA H200", 9, 132, 128, 1.98, 151_397_597_184, 4800e9, 52_428_800, 233_472),
    "b200": GpuTarget("NVIDIA B200", 10, 148, 128, 1.965, 191_514_411_008, 7672.32e9, 132_644_864, 233_472),
    "gb200": GpuTarget("NVIDIA GB200", 10, 152, 128, 2.062, 197_897_748_480, 7928.064e9, 135_528_448, 233_472),
}
"""Targets by the names of ``moejax.laws.chips.CHIPS``."""
