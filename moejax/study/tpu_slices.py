"""Slices of TPUs as Google's services rent them: hosts of a slice, and the names that each service has for it."""

from __future__ import annotations

from moejax.plan.topology import Topology, slices

GKE_ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
}
"""Values of the node label ``cloud.google.com/gke-tpu-accelerator`` (documentation of GKE, "Plan TPUs in GKE")."""

_CORES_IN_NAME = ("v4", "v5p")
"""Cloud TPU's names of these count TensorCores, of which a chip has two."""


def chips_per_host(topology: Topology) -> int:
    """Chips of each machine: four, or all of a slice of one machine with one or, flat, eight."""
    alone = (1, 4, 8) if len(topology.shape) == 2 else (4,)
    return topology.devices if topology.devices in alone else 4


def rentable(chip: str) -> list[Topology]:
    """Slices that can be rented, from small to large: whole machines."""
    every = [Topology(chip, shape) for shape in slices(chip)]
    return [one for one in every if one.devices % chips_per_host(one) == 0]


def cloud_tpu_type(topology: Topology) -> str:
    """Cloud TPU's name of a slice's size: ``v5p-128`` has 64 chips, ``v5litepod-16`` has 16."""
    if topology.chip_name in _CORES_IN_NAME:
        return f"{topology.chip_name}-{2 * topology.devices}"
    return f"{'v5litepod' if topology.chip_name == 'v5e' else topology.chip_name}-{topology.devices}"
