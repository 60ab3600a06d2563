"""Accelerators: what one chip computes at most and holds, as their makers state it."""

from __future__ import annotations

from dataclasses import dataclass

from moejax.config import unknown


@dataclass(frozen=True)
class Chip:
    """One chip. Prices are not here: they differ by contract and month."""

    name: str
    flops_per_second: float
    """Peak of dense matrix products in bfloat16; no structured sparsity."""
    memory_bytes: float
    """Of the chip's own memory."""
    source: str


_TPU = "Google Cloud documentation, page of TPU"
_NVIDIA = "NVIDIA data sheet of"

CHIPS: dict[str, Chip] = {
    "a100": Chip("NVIDIA A100 SXM 80 GB", 312e12, 80e9, f"{_NVIDIA} A100"),
    "h100": Chip("NVIDIA H100 SXM", 989.4e12, 80e9, f"{_NVIDIA} H100, half of the figure with sparsity"),
    "h200": Chip("NVIDIA H200 SXM", 989.4e12, 141e9, f"{_NVIDIA} H200, half of the figure with sparsity"),
    "h800": Chip("NVIDIA H800 SXM", 989.4e12, 80e9, "an H100 SXM but for NVLink and float64; no data sheet is public"),
    "v4": Chip("TPU v4", 275e12, 32e9, f"{_TPU} v4"),
    "v5e": Chip("TPU v5e", 197e12, 16e9, f"{_TPU} v5e"),
    "v5p": Chip("TPU v5p", 459e12, 95e9, f"{_TPU} v5p"),
    "v6e": Chip("TPU v6e", 918e12, 32e9, f"{_TPU} v6e"),
}
"""Chips by name."""


def find(name: str) -> Chip:
    """The chip of that name, in any case.

    Raises:
      ValueError: no such chip; the sentence offers the nearest names.
    """
    if name.lower() not in CHIPS:
        raise ValueError(unknown(f"chip {name!r}", name.lower(), list(CHIPS)))
    return CHIPS[name.lower()]
