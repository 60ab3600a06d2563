"""Topologies: chips and their connections.

``v5p:8x8x16`` is a torus of 1,024 TPUs, ``2xv5p:4x4x4`` two slices, ``h100:8x8`` 8 hosts with 8 GPUs each, and
``cpu:8`` 8 CPU devices of this machine.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from moejax.config import unknown
from moejax.errors import UserError
from moejax.laws.chips import CHIPS, Chip
from moejax.sharding import MESH_AXES
from moejax.wording import did_you_mean, install_command, some

CPU = "cpu"

_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
CUBE = 4
"""Chips along an edge of the cubes that form the slices of a three-dimensional torus."""
HOST_CHIPS = 4
"""Number of chips of a host: 2x2x1 on a three-dimensional torus, and at least 4 on v5e and v6e."""
_LONGEST = {"v4": (4096, 16), "v5p": (6144, 24), "tpu7x": (9216, 36)}
"""Number of chips of the largest slice, and maximum number along an edge, keyed by chip."""
MOST_SLICES = 64
MOST_GPUS = 2**14


@dataclass(frozen=True)
class Topology:
    """One or several slices of TPUs, or a cluster of GPUs."""

    chip_name: str
    """A key of ``moejax.laws.chips.CHIPS``, or ``cpu``."""
    shape: tuple[int, ...]
    """Chips along each dimension of the torus. For GPUs: number of NVLink groups, and GPUs per group."""
    slices: int = 1
    """Number of slices, which the data-center network joins; 1 for GPUs."""

    @property
    def name(self) -> str:
        """The topology as written on the command line."""
        shape = self.shape[1:] if self.is_gpu and self.shape[0] == 1 else self.shape
        several = f"{self.slices}x" if self.slices > 1 else ""
        return f"{several}{self.chip_name}:{'x'.join(map(str, shape))}"

    @property
    def is_gpu(self) -> bool:
        """True if the chips are NVIDIA GPUs."""
        return self.chip_name in TARGETS

    @property
    def platform(self) -> str:
        """The compilation platform: ``tpu``, ``gpu`` or ``cpu``."""
        return "gpu" if self.is_gpu else CPU if self.chip_name == CPU else "tpu"

    @property
    def chips_of_slice(self) -> int:
        """Number of chips of one slice."""
        return math.prod(self.shape)

    @property
    def chips(self) -> int:
        """Number of chips of all slices."""
        return self.slices * self.chips_of_slice

    @property
    def devices(self) -> int:
        """Number of devices in the mesh: one or two for each chip."""
        return self.chips * (1 if self.chip is None else self.chip.devices)

    @property
    def chip(self) -> Chip | None:
        """Specification of one chip; None for CPU devices, whose specification is unknown."""
        return CHIPS.get(self.chip_name)

    @property
    def known_chip(self) -> Chip:
        """Specification of one chip.

        Raises:
          UserError: the chips are CPU devices.
        """
        if self.chip is None:
            raise UserError(f"The memory and speed of {self.name} are unknown; give TPUs or GPUs, such as h100:8x8.")
        return self.chip

    @property
    def device(self) -> Chip | None:
        """Specification of one device; None for CPU devices."""
        return None if self.chip is None else self.chip.device

    def is_ring(self, dimension: int) -> bool:
        """Return whether a link joins the last chip along a dimension to the first chip. This holds in slices of whole
        cubes, or along a full edge of a pod.
        """
        if len(self.shape) == 3:
            return all(size % CUBE == 0 for size in self.shape)
        return len(self.shape) == 2 and self.shape[dimension] == 16

    def compile_only_devices(self) -> list[Any]:
        """Return devices as compilation targets. No TPU or GPU needs to be present.

        Raises:
          ValueError: the compiler is not installed, or this process has too few CPU devices.
        """
        import jax
        from jax.experimental import topologies

        if self.chip_name == CPU:
            if len(jax.devices("cpu")) < self.devices:
                raise ValueError(
                    f"{self.name} needs {self.devices} devices, and this process has {len(jax.devices('cpu'))}; set "
                    f"jax_num_cpu_devices before JAX starts."
                )
            return jax.devices("cpu")[: self.devices]
        check_compiler(self)
        if self.is_gpu:
            return self._gpus()
        # The two cores of a v4 chip work as one device, as on later chips.
        options: dict[str, Any] = {"chip_config_name": "megacore"} if self.chip_name == "v4" else {}
        options |= {"num_slices": self.slices} if self.slices > 1 else {}
        if self.chips_of_slice < HOST_CHIPS:
            # libtpu expects whole hosts; a smaller slice must state the chips of its part of a host.
            options |= {"chips_per_host_bounds": (*self.shape, 1)[:3]}
        devices = topologies.get_topology_desc(replace(self, slices=1).name, "tpu", **options).devices
        assert len(devices) == self.devices, f"{self.name} has {len(devices)} devices"
        return devices

    def _gpus(self) -> list[Any]:
        from jax.experimental import topologies

        assert self.chip is not None
        groups, gpus = self.shape
        a_host = min(gpus, self.chip.host_gpus)
        # The numbers of slices, hosts per slice and GPUs per host. Hosts that NVLink does not join form one slice.
        slices_, hosts = (groups, gpus // a_host) if self.chip.nvlink_gpus > self.chip.host_gpus else (1, groups)
        devices = topologies.get_topology_desc(
            "", "cuda", target_config=TARGETS[self.chip_name].text(), topology=f"{slices_}x{hosts}x{a_host}"
        ).devices
        assert len(devices) == self.devices, f"{self.name} has {len(devices)} devices"
        return devices


def check_compiler(topology: Topology) -> None:
    """Raise ``UserError`` if the compiler for the chips is not installed."""
    if topology.is_gpu:
        if not has_cuda_plugin():
            raise UserError(
                f"Compiling for {topology.name} needs JAX's CUDA plugin, which is not installed (no GPU is needed). "
                f"Run {install_command('cuda13')} (4 GB; docs/plans.md explains how to use a separate environment)."
            )
    elif topology.chip_name != CPU and importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f"Compiling for {topology.name} needs libtpu, which is not installed (no TPU is needed). Run "
            f"{install_command('plan')}."
        )


def parse(text: str) -> Topology:
    """Parse a topology: ``CHIP:AxB``, ``CHIP:AxBxC``, ``2xCHIP:AxBxC``, ``GPU:HOSTSxGPUS`` or ``cpu:N``.

    Raises:
      ValueError: the chip or slice does not exist; the message suggests the nearest.
    """
    if not isinstance(text, str):
        raise UserError(f"The topology is {text!r}; give a text, such as 'h100:8x8'.")
    chip, _, sizes = text.strip().lower().partition(":")
    several = re.fullmatch(r"(\d{1,6})x(.+)", chip)
    chip = several[2] if several else chip
    known = [*(name for name, one in CHIPS.items() if one.torus_dimensions), *TARGETS, CPU]
    if chip not in known:
        why = " because its interconnect is unknown" if chip in CHIPS else ""
        if (glued := re.fullmatch(r"(.+?)[x ](\d+(?:x\d+)*)", chip)) and glued[1] in known and not sizes:
            raise UserError(f"The topology is {text!r}; did you mean {glued[1]}:{glued[2]}?")
        raise UserError(f"No plan can be made for {chip!r}{why}; {did_you_mean(chip, known)}")
    if several and (chip not in CHIPS or not CHIPS[chip].torus_dimensions):
        raise UserError(
            f"The topology is {text!r}; only TPUs have slices, such as 2xv5p:4x4x4. Write GPU hosts like h100:2x8."
        )
    if chip == CPU:
        if not re.fullmatch(r"[1-9][0-9]{0,5}", sizes):
            raise UserError(f"The topology is {text!r}; write the number of CPU devices, such as cpu:8.")
        return Topology(CPU, (int(sizes),))
    if not re.fullmatch(r"[0-9]{1,6}(x[0-9]{1,6})*", sizes):
        raise UserError(f"The topology is {text!r}; give a valid topology: {some(_names(chip), 8)}.")
    shape = tuple(int(size) for size in sizes.split("x"))
    if chip in TARGETS:
        return _gpu_cluster(chip, shape if len(shape) != 1 else (1, *shape), text)
    if shape not in slices(chip):
        near = ", ".join(_nearest(chip, shape))
        raise UserError(f"There is no slice {chip}:{sizes}; slices {_rule(chip)}. Give one of the nearest: {near}.")
    topology = Topology(chip, shape, int(several[1]) if several else 1)
    if not 1 <= topology.slices <= MOST_SLICES:
        raise UserError(f"The topology is {text!r}; give 1 to {MOST_SLICES} slices, such as 2x{chip}:{sizes}.")
    if topology.slices > 1 and not CHIPS[chip].network_bytes_per_second:
        raise UserError(
            f"No plan can be made for slices of {chip}, whose network bandwidth is not published; use one slice, "
            f"{chip}:{sizes}."
        )
    return topology


def _gpu_cluster(name: str, shape: tuple[int, ...], text: str) -> Topology:
    chip = CHIPS[name]
    most, host = chip.nvlink_gpus, chip.host_gpus
    rule = f"write HOSTSxGPUS, such as {name}:{host} or {name}:8x{host}, with all {host} GPUs of each host"
    if most > host:
        rule = (
            f"write RACKSxGPUS, such as {name}:{most} or {name}:2x64. NVLink joins the {most} GPUs of a rack; use "
            f"whole hosts of {host} GPUs"
        )
    if len(shape) != 2 or min(shape) < 1:
        raise UserError(f"The topology is {text!r}; {rule}.")
    groups, gpus = shape
    whole = gpus % host == 0 or (groups == 1 and gpus < host and host % gpus == 0)
    if gpus > most or not whole or groups * gpus > MOST_GPUS:
        alone = "" if most > host else ", or 1, 2 or 4 GPUs of a single host"
        raise UserError(f"There is no topology {text!r}; {rule}{alone}, and at most {MOST_GPUS:,} GPUs in total.")
    return Topology(name, (groups, gpus))


def slices(chip: str) -> list[tuple[int, ...]]:
    """Return the shapes of a chip's slices in ascending size; for GPUs, only powers of two."""
    if chip in TARGETS:
        largest = 1 << (CHIPS[chip].nvlink_gpus.bit_length() - 1)
        alone = [(1, 1 << power) for power in range(largest.bit_length())]
        return [*alone, *((1 << power, largest) for power in range(1, (MOST_GPUS // largest).bit_length()))]
    if CHIPS[chip].torus_dimensions == 2:
        return list(_FLAT)
    most, longest = _LONGEST[chip]
    edges = range(CUBE, longest + 1, CUBE)
    cubes = [c for c in itertools.combinations_with_replacement(edges, 3) if math.prod(c) <= most]
    return [*_SMALL, *sorted(cubes, key=lambda shape: (math.prod(shape), shape))]


def _rule(chip: str) -> str:
    flat = CHIPS[chip].torus_dimensions == 2
    small = "are " + ", ".join("x".join(map(str, shape)) for shape in (_FLAT if flat else _SMALL))
    if flat:
        return small
    most, longest = _LONGEST[chip]
    edges = f"edges that are multiples of {CUBE} up to {longest}, in ascending order"
    return f"{small}. Larger slices have {edges}, and at most {most:,} chips"


def _names(chip: str) -> list[str]:
    return [Topology(chip, shape).name for shape in slices(chip)]


def _nearest(chip: str, shape: tuple[int, ...]) -> list[str]:
    """Return the names of the three slices whose sorted edges have the ratios nearest to 1. If the number of dimensions
    differs, the number of chips is compared first.
    """
    dimensions = CHIPS[chip].torus_dimensions
    wanted = sorted((*shape, *(1,) * dimensions), reverse=True)[:dimensions][::-1]

    def difference(slice_: tuple[int, ...]) -> tuple[float, float]:
        edges = sum(abs(math.log(max(one, 1) / other)) for one, other in zip(wanted, sorted(slice_), strict=True))
        chips = abs(math.log(max(math.prod(shape), 1) / math.prod(slice_)))
        return (0.0 if len(shape) == dimensions else chips, edges)

    return [f"{chip}:{'x'.join(map(str, one))}" for one in sorted(slices(chip), key=difference)[:3]]


@dataclass(frozen=True)
class GpuTarget:
    """Description of a GPU that XLA needs to compile for an absent GPU."""

    description: str
    """Device name in CUDA and JAX."""
    compute_capability: int
    """Major compute capability."""
    cores: int
    """Number of streaming multiprocessors."""
    units: int
    """Number of float32 units of each multiprocessor."""
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
    """Return the version of cuDNN that programs may call: the installed one, or one that supports all these GPUs."""
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
"""Targets, keyed by the names of ``moejax.laws.chips.CHIPS``.

CUDA reports these numbers for the devices (OpenXLA's ``xla/backends/gpu/target_config/specs``, read on
2026-11-24).
"""


def slice_mesh(text: str) -> dict[str, int]:
    """Return the sizes of all mesh axes of a slice from a text such as ``expert=4,tensor=2``.

    Raises:
      UserError: an axis is unknown, is named twice or has no size.
    """
    sizes: dict[str, int] = {}
    for word in text.split(","):
        axis, _, size = word.strip().partition("=")
        if axis not in MESH_AXES:
            raise UserError(unknown(f"--mesh axis {axis!r}", axis, MESH_AXES))
        if not re.fullmatch("-?[0-9]{1,9}", size):
            raise UserError(
                f"--mesh {word.strip()!r} has no size; write {axis}=8, or {axis}=-1 for the remaining devices."
            )
        if axis in sizes:
            raise UserError(f"--mesh {text!r} names {axis} twice; give each axis one size.")
        sizes[axis] = int(size)
    # Unnamed axes have size 1. ``data`` takes the rest if no named axis does.
    data = 1 if -1 in sizes.values() or len(sizes) > 1 else -1
    return {**dict.fromkeys(MESH_AXES, 1), "data": data, **sizes}
