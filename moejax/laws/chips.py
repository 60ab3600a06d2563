"""List accelerators with their peak compute, memory size and bandwidths, as the makers state them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moejax.config import unknown
from moejax.errors import UserError
from moejax.wording import some

GIB = 2.0**30


@dataclass(frozen=True)
class Chip:
    """A chip. Prices are not included because they differ by contract and month."""

    name: str
    flops_per_second: float
    """Peak of dense matrix products in bfloat16, without structured sparsity."""
    memory_bytes: float
    """Size of the chip's own memory."""
    source: str
    memory_bytes_per_second: float = 0.0
    """Bandwidth between the chip and its own memory; 0 if not entered."""
    link_bytes_per_second: float = 0.0
    """Bandwidth to one neighbor in a torus, one way; 0 for other interconnects."""
    torus_dimensions: int = 0
    """Dimensions of the torus, 2 or 3, with two neighbors in each; 0 for other interconnects."""
    cycles_per_second: float = 0.0
    """Clock of a matrix unit: the peak divided by 2 · 128 · 128 operations and the number of units; 0 if not
    entered."""
    fp8_flops_per_second: float = 0.0
    """Peak of dense matrix products in float8; 0 if not supported or not entered."""
    int8_flops_per_second: float = 0.0
    """Peak of dense matrix products in int8; 0 if not supported or not entered."""
    nvlink_bytes_per_second: float = 0.0
    """Bandwidth of a GPU into its NVLink switches, one way; 0 for chips of a torus."""
    nvlink_gpus: int = 0
    """Largest number of GPUs joined by NVLink, in one host or one rack."""
    host_gpus: int = 0
    """Number of GPUs per host."""
    network_bytes_per_second: float = 0.0
    """Network bandwidth per chip, one way; 0 if not stated. For a GPU, its own InfiniBand card, to GPUs beyond NVLink;
    for a TPU, the data center network (DCN), to other slices."""
    devices: int = 1
    """Number of JAX devices per chip, each with an equal share of the other values."""

    def peak(self, quantization: str) -> float:
        """Return the peak FLOPs per second of matmuls in "fp8" or "int8", or in bfloat16 for "none"; 0 if not
        supported."""
        peaks = {"fp8": self.fp8_flops_per_second, "int8": self.int8_flops_per_second}
        return peaks.get(quantization, self.flops_per_second)

    @property
    def device(self) -> Chip:
        """Return one device's equal share of the chip, including its links."""
        share = 1 / self.devices
        return replace(
            self,
            flops_per_second=self.flops_per_second * share,
            memory_bytes=self.memory_bytes * share,
            memory_bytes_per_second=self.memory_bytes_per_second * share,
            link_bytes_per_second=self.link_bytes_per_second * share,
            fp8_flops_per_second=self.fp8_flops_per_second * share,
            int8_flops_per_second=self.int8_flops_per_second * share,
            network_bytes_per_second=self.network_bytes_per_second * share,
            devices=1,
        )


_TPU = "Google Cloud documentation, docs.cloud.google.com/tpu/docs"
_POD = "of a pod of 256"
_NVIDIA = "NVIDIA data sheet of"
_WITHOUT_SPARSITY = "products: half of the figures with sparsity; NVLink: half of the figure for both directions"
_IN_COPIES = "8 bits: the data sheet's figures as others quote them (read 2026-11-25)"
_CONNECTX_7 = "a ConnectX-7 of 400 Gb/s for each GPU"

_H100 = Chip(
    "NVIDIA H100 SXM",
    989.4e12,
    80e9,
    f"{_NVIDIA} H100, of DGX H100: {_CONNECTX_7}; {_WITHOUT_SPARSITY}; {_IN_COPIES}",
    3350e9,
    fp8_flops_per_second=1978.9e12,
    int8_flops_per_second=1978.9e12,
    nvlink_bytes_per_second=450e9,
    nvlink_gpus=8,
    host_gpus=8,
    network_bytes_per_second=50e9,
)

CHIPS: dict[str, Chip] = {
    "a100": Chip(
        "NVIDIA A100 SXM 80 GB",
        312e12,
        80e9,
        f"{_NVIDIA} A100, of DGX A100: a ConnectX-6 of 200 Gb/s for each GPU; {_WITHOUT_SPARSITY}; {_IN_COPIES}",
        2039e9,
        int8_flops_per_second=624e12,
        nvlink_bytes_per_second=300e9,
        nvlink_gpus=8,
        host_gpus=8,
        network_bytes_per_second=25e9,
    ),
    "a100-40gb": Chip(
        "NVIDIA A100 SXM 40 GB",
        312e12,
        40e9,
        f"{_NVIDIA} A100; products: half of the figures with sparsity; {_IN_COPIES}",
        1555e9,
        int8_flops_per_second=624e12,
    ),
    "h100": _H100,
    "h200": replace(
        _H100,
        name="NVIDIA H200 SXM",
        memory_bytes=141e9,
        source=f"{_NVIDIA} H200, of DGX H200: {_CONNECTX_7}; {_WITHOUT_SPARSITY}; {_IN_COPIES}",
        memory_bytes_per_second=4800e9,
    ),
    "h800": Chip(
        "NVIDIA H800 SXM",
        989.4e12,
        80e9,
        "an H100 SXM except for NVLink and float64; no data sheet is public",
        fp8_flops_per_second=1978.9e12,
        int8_flops_per_second=1978.9e12,
    ),
    "b200": Chip(
        "NVIDIA B200 SXM",
        2250e12,
        180e9,
        f"{_NVIDIA} DGX B200, over its 8 GPUs: {_CONNECTX_7}; {_WITHOUT_SPARSITY}; {_IN_COPIES}",
        8000e9,
        fp8_flops_per_second=4500e12,
        int8_flops_per_second=4500e12,
        nvlink_bytes_per_second=900e9,
        nvlink_gpus=8,
        host_gpus=8,
        network_bytes_per_second=50e9,
    ),
    "gb200": Chip(
        "NVIDIA GB200, one GPU",
        2500e12,
        186e9,
        f"{_NVIDIA} GB200 NVL72, over its 72 GPUs: {_CONNECTX_7}; {_WITHOUT_SPARSITY}; {_IN_COPIES}",
        8000e9,
        fp8_flops_per_second=5000e12,
        int8_flops_per_second=5000e12,
        nvlink_bytes_per_second=900e9,
        nvlink_gpus=72,
        host_gpus=4,
        network_bytes_per_second=50e9,
    ),
    "v4": Chip(
        "TPU v4",
        275e12,
        32 * GIB,
        f"{_TPU}/v4; links: Jouppi et al. 2023 (arXiv:2304.01433), Table 4: 6 of 50 GB/s",
        1200e9,
        50e9,
        3,
        1.05e9,
        int8_flops_per_second=275e12,
    ),
    "v5e": Chip(
        "TPU v5e",
        197e12,
        16 * GIB,
        f"{_TPU}/v5e: 400 GB/s both ways over 4 ports; DCN: {_POD} 6.4 Tb/s; int8 in its table",
        819e9,
        50e9,
        2,
        1.5e9,
        int8_flops_per_second=393e12,
        network_bytes_per_second=25e9 / 8,
    ),
    "v5p": Chip(
        "TPU v5p",
        459e12,
        95 * GIB,
        f"{_TPU}/v5p: 1200 GB/s both ways over 6 ports; DCN 50 Gb/s; int8: twice bfloat16, in none of its tables",
        2765e9,
        100e9,
        3,
        1.75e9,
        int8_flops_per_second=918e12,
        network_bytes_per_second=50e9 / 8,
    ),
    "v6e": Chip(
        "TPU v6e",
        918e12,
        32 * GIB,
        f"{_TPU}/v6e: 800 GB/s both ways over 4 ports; DCN: {_POD} 25.6 Tb/s; int8 in its table",
        1638e9,
        100e9,
        2,
        int8_flops_per_second=1836e12,
        network_bytes_per_second=100e9 / 8,
    ),
    "tpu7x": Chip(
        "TPU7x, Ironwood",
        2307e12,
        192 * GIB,
        f"{_TPU}/tpu7x: 1200 GB/s both ways over 6 ports; DCN 100 Gb/s; two devices a chip; "
        "fp8 in its table, which has no int8",
        7380e9,
        100e9,
        3,
        fp8_flops_per_second=4614e12,
        network_bytes_per_second=100e9 / 8,
        devices=2,
    ),
}
"""Chips by name."""


def flops_per_hour(flops_per_second: float, mfu: float) -> float:
    """Return the FLOPs that a chip computes per hour at the utilization ``mfu`` of its peak."""
    return flops_per_second * mfu * 3600


def find(name: str) -> Chip:
    """Return the chip called ``name``, ignoring case.

    Raises:
      UserError: there is no such chip; the message suggests similar names.
    """
    if name.lower() == "cpu":
        raise UserError(
            f"An estimate needs a chip with a known peak speed, such as {some(list(CHIPS), 4)}; a CPU has none here. "
            "On a CPU, the first run shows its speed and the time left."
        )
    if name.lower() not in CHIPS:
        raise UserError(unknown(f"chip {name!r}", name.lower(), list(CHIPS)))
    return CHIPS[name.lower()]
