"""Model the time of collectives along the axes of a mesh, and the links that they use.

The model includes bandwidth but no latency and no contention.

On a TPU torus, a mesh axis covers dimensions or parts of dimensions. A chip has two links along a ring. At the end of a
line it has one link, which carries all its bytes. Dimensions work at the same time (Austin et al. 2025, "How to Scale
Your Model", Sec. 3). The two devices of a chip share its links; their exchange within the chip is counted as bytes and
takes no time. The data-center network (DCN) joins slices, only along ``dcn_data``.

NVLink switches join the GPUs of a host or rack, with the same bandwidth for each GPU. Each GPU has its own network
interface card (NIC), through which it reaches GPUs of other hosts. In a group, the GPUs of one host share inbound
traffic: each receives a part through its NIC, and meanwhile they exchange parts over NVLink (ibid., Sec. 12).
In-network reduction (SHARP) is not modeled.
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

from moejax.plan.collectives import Groups, sent_share
from moejax.plan.topology import Topology
from moejax.sharding import DCN_DATA, MESH_AXES


@dataclass(frozen=True, kw_only=True)
class TorusSegment:
    """The part of one torus dimension that a group of chips covers."""

    chips: int
    is_ring: bool
    """True if a link joins the last chip to the first chip."""
    stride: int
    """Steps from one chip of the group to the next. The chips between belong to other groups, which share the links."""

    @property
    def links(self) -> float:
        """The group's share of the links into a chip along this dimension."""
        return (2 if self.is_ring else 1) / self.stride


ICI, CHIP, DCN, NVLINK, INFINIBAND = "ICI", "within the chip", "DCN", "NVLink", "InfiniBand"
"""Kinds of links: TPU torus; between the two devices of a TPU; between slices; between GPUs of a host or rack; between
hosts or racks.
"""
ALL_TO_ALL = ("all-to-all", "ragged-all-to-all")


class Interconnect(Protocol):
    """Links between the chips of a mesh. ``bytes_`` is counted like ``Collective.bytes``. ``pairs`` are a permutation's
    source and target devices, if the program states them.
    """

    def bytes_sent(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> dict[str, float]:
        """Return the bytes that one chip sends in a collective over ``bytes_`` bytes, keyed by kind of link."""
        ...

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> float:
        """Return the seconds of one collective over an array of ``bytes_`` bytes."""
        ...


@dataclass(frozen=True)
class Torus:
    """Links between TPUs."""

    mesh: Mapping[str, int]
    """Sizes of the axes within a slice."""
    segments: Mapping[tuple[str, ...], tuple[TorusSegment, ...]]
    """Torus segments of a group, for every set of mesh axes in mesh order."""
    chips: Mapping[tuple[str, ...], int]
    """Number of chips of a group, for every set of mesh axes in mesh order."""
    link_bytes_per_second: float
    """One device's share of the one-way bandwidth of a link."""
    placed: tuple[tuple[int, ...], ...]
    """Chip coordinates of every device, in the order of the mesh."""
    edges: tuple[tuple[int, bool], ...]
    """Number of chips along each torus dimension, and whether a link joins the last chip to the first."""
    slices: int = 1
    network_bytes_per_second: float = 0.0
    """One-way bandwidth of a device to other slices."""

    def bytes_sent(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> dict[str, float]:
        """Return the bytes sent, keyed by kind of link: between slices, within a slice, or within a chip."""
        if tuple(axes) == (DCN_DATA,):
            return {DCN: bytes_ * sent_share(kind, self.slices)}
        if pairs:
            inside = sum(self.placed[source] == self.placed[target] for source, target in pairs) / len(pairs)
            return {link: bytes_ * share for link, share in ((CHIP, inside), (ICI, 1 - inside)) if share > 0}
        devices = math.prod(self.mesh[axis] for axis in axes)
        shares = _shares(kind, devices, devices // self.chips.get(tuple(axes), 1))
        return {link: bytes_ * share for link, share in zip((CHIP, ICI), shares, strict=True) if share > 0}

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> float:
        """Return the seconds of a collective over ICI or, between slices, over DCN.

        An all-to-all takes the time of its slowest torus segment, a permutation with known pairs that of its busiest
        link. Transfers within a chip count as 0 seconds.
        """
        sent = self.bytes_sent(kind, axes, bytes_, pairs)
        if DCN in sent:
            return sent[DCN] / self.network_bytes_per_second
        if pairs:
            return bytes_ * self._most_over_a_link(pairs) / self.link_bytes_per_second
        segments = self.segments.get(tuple(axes), ())
        if ICI not in sent:
            return 0.0
        if kind in ALL_TO_ALL:
            # Half of the group sends half of its bytes to the other half, through the links between them. If a chip has
            # several devices, the number of senders and the shares of its links cancel out.
            return bytes_ * max(s.chips / (4 * s.links) for s in segments) / self.link_bytes_per_second
        links = 1 if kind == "collective-permute" else sum(s.links for s in segments)
        return sent[ICI] / (links * self.link_bytes_per_second)

    def _most_over_a_link(self, pairs: Groups) -> float:
        """Return the largest number of pairs that use one link in one direction on shortest paths, divided by the
        number of devices that share the link.
        """
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
    """Links between GPUs: NVLink within groups, a network between groups."""

    mesh: Mapping[str, int]
    neighbors: Mapping[tuple[str, ...], int]
    """Number of GPUs of a group that NVLink joins, for every set of mesh axes in mesh order; the minimum over the
    group's GPUs, each of which counts itself.
    """
    bytes_per_second: Mapping[str, float]
    """One-way bandwidth of each kind of link."""

    def bytes_sent(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> dict[str, float]:
        """Return the bytes sent, keyed by kind of link. The GPUs of a host share the bytes to other hosts."""
        devices, near = math.prod(self.mesh[axis] for axis in axes), self.neighbors.get(tuple(axes), 1)
        shares = zip((NVLINK, INFINIBAND), _shares(kind, devices, near), strict=True)
        return {link: bytes_ * share for link, share in shares if share > 0}

    def seconds(self, kind: str, axes: Sequence[str], bytes_: float, pairs: Groups = ()) -> float:
        """Return the seconds of the slower kind of link; both work at the same time."""
        sent = self.bytes_sent(kind, axes, bytes_, pairs)
        return max((amount / self.bytes_per_second[link] for link, amount in sent.items()), default=0.0)


def _shares(kind: str, devices: int, near: int) -> tuple[float, float]:
    """Return the bytes that a device sends in a collective, as multiples of the whole array's bytes.

    The first number counts bytes to the ``near`` devices, which are joined directly and include the device itself. The
    second counts bytes to all other devices; each near device transfers a part of them for all near devices.
    """
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
    """Return the links of a mesh over a topology, or None for CPU devices. ``mesh`` has the sizes within a slice."""
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
    joined = [MESH_AXES.index(axis) for axis in axes]
    others = [axis for axis in range(len(MESH_AXES)) if axis not in joined]
    return placed.transpose(*others, *joined).reshape(-1, math.prod(placed.shape[axis] for axis in joined))


def _fewest(rows: np.ndarray) -> int:
    return min(int(np.unique(row, return_counts=True)[1].min()) for row in np.unique(rows, axis=0))


@dataclass(frozen=True)
class _Place:
    """Attributes of a chip that JAX reads to place it in a mesh."""

    coords: tuple[int, ...]
    device_kind: str
    platform: str = "tpu"
    core_on_chip: int = 0


_KINDS = {"v4": "TPU v4", "v5e": "TPU v5 lite", "v5p": "TPU v5", "v6e": "TPU v6 lite", "tpu7x": "TPU7x"}
"""Device kinds of libtpu, keyed by chip name."""


def _coordinates(topology: Topology, mesh: Mapping[str, int]) -> np.ndarray:
    """Return the chip coordinates of the devices in a slice's mesh, placed like ``moejax.train.mesh.make_mesh``
    does.
    """
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
