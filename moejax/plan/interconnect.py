"""How long chips of a torus take to exchange bytes along the axes of a mesh.

A mesh axis covers dimensions of the torus, or parts of them. Along a ring a chip has two links, along a line one that
all bytes of its end must pass; dimensions work at once (Austin et al. 2025, "How to Scale Your Model", Sec. 3). Only
bandwidth counts: latency and what else travels at the same time do not.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jax.experimental import mesh_utils

from moejax.plan.topology import Topology
from moejax.sharding import MESH_AXES


@dataclass(frozen=True, kw_only=True)
class TorusSegment:
    """What a group of chips covers of one dimension of the torus."""

    chips: int
    is_ring: bool
    """Whether the last is joined to the first."""
    stride: int
    """Steps from one to the next; those between belong to other groups, which share the links."""

    @property
    def links(self) -> float:
        """Links into a chip along this dimension that are the group's own."""
        return (2 if self.is_ring else 1) / self.stride


@dataclass(frozen=True)
class Interconnect:
    """Links between the chips of a mesh."""

    mesh: Mapping[str, int]
    segments: Mapping[tuple[str, ...], tuple[TorusSegment, ...]]
    """For every set of mesh axes, in their order, what a group along them covers."""
    link_bytes_per_second: float
    """One way."""

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float) -> float:
        """Seconds of one collective over an array of so many bytes, counted as ``Collective.bytes``."""
        segments = self.segments.get(tuple(axes), ())
        if not segments:
            return 0.0
        devices = math.prod(self.mesh[axis] for axis in axes)
        others = (devices - 1) / devices
        if kind in ("all-to-all", "ragged-all-to-all"):
            # Half of the group sends half of its bytes to the other half, through the links between them.
            across = max(s.chips / (4 * s.links) for s in segments)
            return bytes_ * across / self.link_bytes_per_second
        if kind == "collective-permute":
            return bytes_ / self.link_bytes_per_second
        links = sum(s.links for s in segments)
        return bytes_ * others * (2 if kind == "all-reduce" else 1) / (links * self.link_bytes_per_second)


def interconnect(topology: Topology, mesh: Mapping[str, int]) -> Interconnect | None:
    """The links of a mesh over a slice of a torus; None for a topology that is none."""
    return _interconnect(topology, tuple(mesh[axis] for axis in MESH_AXES))


@functools.lru_cache(maxsize=4096)
def _interconnect(topology: Topology, sizes: tuple[int, ...]) -> Interconnect | None:
    if topology.chip is None or not topology.chip.torus_dimensions:
        return None
    mesh: dict[str, int] = dict(zip(MESH_AXES, sizes, strict=True))
    placed = _coordinates(topology, mesh)
    segments = {}
    for count in range(1, len(MESH_AXES) + 1):
        for axes in itertools.combinations(MESH_AXES, count):
            group = placed[tuple(slice(None) if axis in axes else 0 for axis in MESH_AXES)]
            segments[axes] = _segments(group.reshape(-1, placed.shape[-1]), topology)
    return Interconnect(mesh, segments, topology.chip.link_bytes_per_second)


@dataclass(frozen=True)
class _Place:
    """What JAX must know of a chip to place it in a mesh."""

    coords: tuple[int, ...]
    device_kind: str
    platform: str = "tpu"
    core_on_chip: int = 0


_KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite"}
"""What libtpu calls the chips."""


def _coordinates(topology: Topology, mesh: Mapping[str, int]) -> np.ndarray:
    """Coordinates of the chips of a mesh, as ``moejax.train.mesh.make_mesh`` places them."""
    kind = _KINDS[topology.chip_name]
    shape = (*topology.shape, 1)[:3]
    places = [_Place(coords[::-1], kind) for coords in itertools.product(*(range(size) for size in shape[::-1]))]
    sizes = [mesh[axis] for axis in MESH_AXES]
    placed = mesh_utils.create_device_mesh(sizes, places, allow_split_physical_axes=True)  # type: ignore[arg-type]
    coordinates = np.asarray([place.coords[: len(topology.shape)] for place in placed.flat])
    return coordinates.reshape(*sizes, len(topology.shape))


def _segments(group: np.ndarray, topology: Topology) -> tuple[TorusSegment, ...]:
    segments = []
    for dimension, size in enumerate(topology.shape):
        places = np.unique(group[:, dimension])
        if len(places) > 1:
            stride = int(np.diff(places).min())
            is_ring = topology.is_ring(dimension) and len(places) * stride == size
            segments.append(TorusSegment(chips=len(places), is_ring=is_ring, stride=stride))
    return tuple(segments)
