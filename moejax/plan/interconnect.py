"""How long chips take to exchange bytes along the axes of a mesh, and over which links.

Only bandwidth counts: latency and what else travels at the same time do not.

On a torus of TPUs, a mesh axis covers dimensions, or parts of them. Along a ring a chip has two links, along a line one
that all bytes of its end must pass; dimensions work at once (Austin et al. 2025, "How to Scale Your Model",
Sec. 3). Where a chip is two devices, these share its links; what they exchange within the chip is counted and takes no
time here. Slices are joined by the data center's network (DCN), along ``dcn_data`` alone.

GPUs of a host, or of a rack, are joined by NVLink's switches at one bandwidth for each of them, and to all others by a
network card of each. What several of a group in one host need from outside they fetch in parts, each through its own
card, and pass on over NVLink, both at once (there, Sec. 12). Sums in switches (SHARP) are left out.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from jax.experimental import mesh_utils

from moejax.plan.topology import Topology
from moejax.sharding import DCN_DATA, MESH_AXES
from moejax.train.collectives import Groups, sent_share


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


ICI, CHIP, DCN, NVLINK, INFINIBAND = "ICI", "within the chip", "DCN", "NVLink", "InfiniBand"
"""Kinds of links: of a TPU's torus, of a TPU's two devices, between slices; of GPUs in a host or rack, and between."""
ALL_TO_ALL = ("all-to-all", "ragged-all-to-all")


class Interconnect(Protocol):
    """Links between the chips of a mesh. ``bytes_`` of a collective are counted as ``Collective.bytes``, and ``pairs``
    are those of a permutation, if they are known."""

    def bytes_sent(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> dict[str, float]:
        """Bytes that one chip sends in a collective over so many bytes, by the kind of links."""
        ...

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> float:
        """Seconds of one collective over an array of so many bytes."""
        ...


@dataclass(frozen=True)
class Torus:
    """Links between TPUs."""

    mesh: Mapping[str, int]
    """Sizes of the axes within a slice."""
    segments: Mapping[tuple[str, ...], tuple[TorusSegment, ...]]
    """For every set of mesh axes, in their order, what a group along them covers."""
    chips: Mapping[tuple[str, ...], int]
    """The same: of how many chips a group's devices are."""
    link_bytes_per_second: float
    """One way; a device's share."""
    placed: tuple[tuple[int, ...], ...]
    """Coordinates of the chip of every device, in the order of the mesh."""
    edges: tuple[tuple[int, bool], ...]
    """By dimension of the torus, how many chips it has and whether the last is joined to the first."""
    slices: int = 1
    network_bytes_per_second: float = 0.0
    """Of a device, to other slices; one way."""

    def bytes_sent(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> dict[str, float]:
        """Between slices over their network; within one over the torus, but for what stays in a chip."""
        if tuple(axes) == (DCN_DATA,):
            return {DCN: bytes_ * sent_share(kind, self.slices)}
        if pairs:
            inside = sum(self.placed[source] == self.placed[target] for source, target in pairs) / len(pairs)
            return {link: bytes_ * share for link, share in ((CHIP, inside), (ICI, 1 - inside)) if share > 0}
        devices = math.prod(self.mesh[axis] for axis in axes)
        shares = _shares(kind, devices, devices // self.chips.get(tuple(axes), 1))
        return {link: bytes_ * share for link, share in zip((CHIP, ICI), shares, strict=True) if share > 0}

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> float:
        """By the slowest part of a way."""
        sent = self.bytes_sent(kind, axes, bytes_, pairs)
        if DCN in sent:
            return sent[DCN] / self.network_bytes_per_second
        if pairs:
            return bytes_ * self._most_over_a_link(pairs) / self.link_bytes_per_second
        segments = self.segments.get(tuple(axes), ())
        if ICI not in sent:
            return 0.0
        if kind in ALL_TO_ALL:
            # Half of the group sends half of its bytes to the other half, through the links between them. Where a chip
            # is several devices, as many of them send as shares of its links are theirs.
            return bytes_ * max(s.chips / (4 * s.links) for s in segments) / self.link_bytes_per_second
        links = 1 if kind == "collective-permute" else sum(s.links for s in segments)
        return sent[ICI] / (links * self.link_bytes_per_second)

    def _most_over_a_link(self, pairs: Groups) -> float:
        """How many pairs meet on one link, one way, each on its shortest way; over the devices that share the link."""
        passing: dict[tuple[tuple[int, ...], int, int], float] = {}
        for source, target in pairs:
            at, end = list(self.placed[source]), self.placed[target]
            for dimension, (size, is_ring) in enumerate(self.edges):
                ahead = end[dimension] - at[dimension]
                ways = {ahead % size: 1, -(-ahead % size): -1} if is_ring else {ahead: 1 if ahead > 0 else -1}
                shortest = [steps for steps in ways if abs(steps) == min(map(abs, ways))]
                for steps in shortest:
                    for step in range(abs(steps)):
                        here = list(at)
                        here[dimension] = (at[dimension] + step * ways[steps]) % size
                        link = (tuple(here), dimension, ways[steps])
                        passing[link] = passing.get(link, 0.0) + 1 / len(shortest)
                at[dimension] = end[dimension]
        return max(passing.values(), default=0.0) * len(set(self.placed)) / len(self.placed)


@dataclass(frozen=True)
class Switched:
    """Links between GPUs: NVLink in groups, a network between these."""

    mesh: Mapping[str, int]
    neighbours: Mapping[tuple[str, ...], int]
    """For every set of mesh axes, in their order: how many of those along them NVLink joins to a GPU, itself counted;
    the fewest of any GPU."""
    bytes_per_second: Mapping[str, float]
    """One way, by the kind of links."""

    def bytes_sent(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> dict[str, float]:
        """Over NVLink what it reaches, over the network the rest, of which each GPU of a host sends its part."""
        devices, near = math.prod(self.mesh[axis] for axis in axes), self.neighbours.get(tuple(axes), 1)
        shares = zip((NVLINK, INFINIBAND), _shares(kind, devices, near), strict=True)
        return {link: bytes_ * share for link, share in shares if share > 0}

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> float:
        """Of the slower kind of links: both work at once."""
        sent = self.bytes_sent(kind, axes, bytes_, pairs)
        return max((amount / self.bytes_per_second[link] for link, amount in sent.items()), default=0.0)


def _shares(kind: str, devices: int, near: int) -> tuple[float, float]:
    """What each of so many devices sends in a collective, over the bytes of the whole array: to the ``near`` ones that
    are joined to it directly, itself counted, and to the others, of which each of the near fetches a part for all."""
    if devices <= 1:
        return 0.0, 0.0
    outside = (devices - near) / devices
    if kind in ALL_TO_ALL:
        return (near - 1) / devices, outside
    if kind == "collective-permute":
        return float(near == devices), float(near < devices)
    whole = sent_share(kind, devices)
    network = whole * outside / near * devices / (devices - 1)
    return whole - network, network


def interconnect(topology: Topology, mesh: Mapping[str, int]) -> Interconnect | None:
    """The links of a mesh over a topology; None for devices of a CPU. ``mesh`` has the sizes within a slice."""
    return _interconnect(topology, tuple(mesh[axis] for axis in MESH_AXES))


@functools.lru_cache(maxsize=4096)
def _interconnect(topology: Topology, sizes: tuple[int, ...]) -> Interconnect | None:
    chip = topology.device
    if chip is None:
        return None
    mesh: dict[str, int] = dict(zip(MESH_AXES, sizes, strict=True))
    if topology.is_gpu:
        speeds = {NVLINK: chip.nvlink_bytes_per_second, INFINIBAND: chip.network_bytes_per_second}
        groups = np.arange(topology.devices).reshape(sizes) // topology.shape[1]
        return Switched(mesh, {axes: _fewest(_along(groups, axes)) for axes in _sets_of_axes()}, speeds)
    placed = _coordinates(topology, mesh)
    segments, chips = {}, {}
    for axes in _sets_of_axes():
        group = placed[tuple(slice(None) if axis in axes else 0 for axis in MESH_AXES)]
        group = group.reshape(-1, placed.shape[-1])
        segments[axes], chips[axes] = _segments(group, topology), len(np.unique(group, axis=0))
    return Torus(
        mesh,
        segments,
        chips,
        chip.link_bytes_per_second,
        tuple(map(tuple, placed.reshape(-1, placed.shape[-1]).tolist())),
        tuple((size, topology.is_ring(dimension)) for dimension, size in enumerate(topology.shape)),
        topology.slices,
        chip.network_bytes_per_second,
    )


def _sets_of_axes() -> list[tuple[str, ...]]:
    counts = range(1, len(MESH_AXES) + 1)
    return [axes for count in counts for axes in itertools.combinations(MESH_AXES, count)]


def _along(placed: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Rows of what belongs to those that some mesh axes join."""
    joined = [MESH_AXES.index(axis) for axis in axes]
    others = [axis for axis in range(len(MESH_AXES)) if axis not in joined]
    return placed.transpose(*others, *joined).reshape(-1, math.prod(placed.shape[axis] for axis in joined))


def _fewest(rows: np.ndarray) -> int:
    """How often, in its row, a number comes that comes most seldom."""
    return min(int(np.unique(row, return_counts=True)[1].min()) for row in np.unique(rows, axis=0))


@dataclass(frozen=True)
class _Place:
    """What JAX must know of a chip to place it in a mesh."""

    coords: tuple[int, ...]
    device_kind: str
    platform: str = "tpu"
    core_on_chip: int = 0


_KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}
"""What libtpu calls the chips."""


def _coordinates(topology: Topology, mesh: Mapping[str, int]) -> np.ndarray:
    """Coordinates of the chips of the devices of a slice's mesh, as ``moejax.train.mesh.make_mesh`` places them."""
    kind = _KINDS[topology.chip_name]
    shape = (*topology.shape, 1)[:3]
    assert topology.chip is not None
    places = [
        _Place(coords[::-1], kind, core_on_chip=core)
        for coords in itertools.product(*(range(size) for size in shape[::-1]))
        for core in range(topology.chip.devices)
    ]
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
