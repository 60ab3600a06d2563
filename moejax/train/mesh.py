"""The mesh of devices, and where a training state lies on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from moejax.architecture import Architecture
from moejax.errors import UserError
from moejax.ranges import whole
from moejax.sharding import MESH_AXES, TOKEN_AXES, partition_spec

Devices = Annotated[int, whole(-1, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each axis of the mesh; -1 on one axis takes what the others leave."""

    data: Devices = -1
    fsdp: Devices = 1
    expert: Devices = 1
    tensor: Devices = 1

    def sizes(self, devices: int) -> tuple[int, ...]:
        """Sizes in the order of ``MESH_AXES``.

        Raises:
          UserError: the axes do not multiply to the number of devices.
        """
        given = tuple(getattr(self, axis) for axis in MESH_AXES)
        fixed = math.prod(size for size in given if size != -1)
        text = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, given, strict=True))
        if given.count(-1) > 1 or any(size < 1 and size != -1 for size in given):
            raise UserError(f"mesh is {text}; axes are positive, and at most one may be -1.")
        if (-1 in given and devices % fixed) or (-1 not in given and fixed != devices):
            raise UserError(
                f"mesh is {text}, which does not fit {devices} devices; the axes must multiply to {devices}"
                f" (use -1 on one axis to fill it)."
            )
        return tuple(devices // fixed if size == -1 else size for size in given)


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh over all devices of all processes, or those given; the compiler places what is not said (Auto axes).

    On a torus, axes get whole dimensions where the sizes allow it, so that their devices are neighbours.

    Raises:
      UserError: the axes do not multiply to the number of devices, or the devices are of several TPU slices.
    """
    devices = jax.devices() if devices is None else devices
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices > 1 and devices[0].platform == "tpu":
        raise UserError(f"The devices are of {slices} TPU slices, and a mesh is laid on one: start a job per slice.")
    placed = mesh_utils.create_device_mesh(
        shape.sizes(len(devices)), devices, allow_split_physical_axes=devices[0].platform == "tpu"
    )
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Sequences of a batch, split over every token axis."""
    return NamedSharding(mesh, PartitionSpec(TOKEN_AXES))


def token_shards(mesh: Mesh | AbstractMesh) -> int:
    """Parts into which the sequences of a batch are split."""
    return math.prod(mesh.shape[axis] for axis in TOKEN_AXES)


def param_shardings(axes: Any, abstract: Any, mesh: Mesh) -> Any:
    """Sharding of every parameter from its logical axis names."""
    return jax.tree.map(
        lambda leaf, names: NamedSharding(mesh, partition_spec(names, leaf.shape, mesh)),
        abstract,
        axes,
    )


def local_rows(sharding: NamedSharding, rows: int) -> np.ndarray:
    """Numbers of those rows of a batch, in order, that lie on this process's devices."""
    places = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in places if index is not None]))


def place_rows(local: np.ndarray, mine: np.ndarray, rows: int, sharding: NamedSharding) -> jax.Array:
    """A batch of ``rows`` rows on the devices, of which each process gives its own, ``mine``."""

    def part(index: Any) -> np.ndarray:
        return local[np.searchsorted(mine, np.arange(rows)[index[0]])]

    return jax.make_array_from_callback((rows, *local.shape[1:]), sharding, part)


def check_fits(architecture: Architecture, batch_sequences: int, microbatches: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise ``UserError`` if a batch, the experts, or their hidden units cannot be split over the mesh."""
    shards = token_shards(mesh)
    if batch_sequences % shards:
        raise UserError(
            f"A batch has {batch_sequences} sequences, which {shards} token shards (data x fsdp x expert) do not "
            f"divide; change batch_tokens or the mesh."
        )
    if batch_sequences // microbatches % shards:
        raise UserError(
            f"A microbatch has {batch_sequences // microbatches} sequences, {batch_sequences} in {microbatches} parts, "
            f"which {shards} token shards (data x fsdp x expert) do not divide; change microbatches, batch_tokens or "
            f"the mesh."
        )
    if architecture.is_moe and architecture.num_experts % mesh.shape["expert"]:
        raise UserError(
            f"num_experts is {architecture.num_experts}, which mesh.expert = {mesh.shape['expert']} does not divide; "
            f"every device along that axis holds as many experts: choose a divisor."
        )
    if architecture.is_moe and architecture.expert_hidden % mesh.shape["tensor"]:
        raise UserError(
            f"expert_hidden is {architecture.expert_hidden}, which mesh.tensor = {mesh.shape['tensor']} does not "
            f"divide; every device along that axis holds as many hidden units of an expert: choose a divisor."
        )
