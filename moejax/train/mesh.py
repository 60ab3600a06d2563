"""Build the device mesh and the shardings of a training state."""

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
from moejax.sharding import MESH_AXES, TOKEN_AXES, partition_spec, token_shards

Devices = Annotated[int, whole(-1, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """Devices along each axis of the mesh, within a slice; -1 on one axis takes the remaining devices.

    Slices of TPUs are connected only by the data-center network (DCN). Each slice holds a copy of the state. Only sums
    over tokens, mainly those of gradients, cross between slices.
    """

    dcn_data: Devices = -1
    """Number of slices; -1 for as many as there are. They are the outermost part of the mesh's axis ``data``."""
    data: Devices = -1
    fsdp: Devices = 1
    expert: Devices = 1
    tensor: Devices = 1

    def sizes(self, devices: int, slices: int = 1) -> tuple[int, ...]:
        """Return sizes in the order of ``MESH_AXES``, for devices in this many slices; ``data`` counts those of all
        slices.

        Raises:
          UserError: the axes do not multiply to the number of devices, or axes other than ``dcn_data`` cross slices.
        """
        data, *others = self.slice_sizes(devices, slices)
        return (data * self.joined(devices, slices), *others)

    def slice_sizes(self, devices: int, slices: int = 1) -> tuple[int, ...]:
        """Return sizes in the order of ``MESH_AXES`` within a slice."""
        slices = self.joined(devices, slices)
        devices //= slices
        given = tuple(getattr(self, axis) for axis in MESH_AXES)
        fixed = math.prod(size for size in given if size != -1)
        text = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, given, strict=True))
        if given.count(-1) > 1 or any(size < 1 and size != -1 for size in given):
            raise UserError(f"mesh is {text}; axes are positive, and at most one may be -1.")
        if (-1 in given and devices % fixed) or (-1 not in given and fixed != devices):
            where = f"{devices} devices"
            if slices > 1:
                where = (
                    f"the {devices} devices of each of {slices} slices, and axes other than dcn_data would send tokens "
                    f"or weights over the data center's network"
                )
            raise UserError(
                f"mesh is {text}, which does not fit {where}; the axes must multiply to {devices}"
                f" (use -1 on one axis to fill it)."
            )
        return tuple(devices // fixed if size == -1 else size for size in given)

    def joined(self, devices: int, slices: int = 1) -> int:
        """Return the number of device groups along ``dcn_data``: the number of slices unless it is given."""
        wanted = slices if self.dcn_data == -1 else self.dcn_data
        if wanted < 1 or (slices > 1 and wanted != slices):
            raise UserError(
                f"mesh.dcn_data is {self.dcn_data} and the devices are of {slices} slices; other axes would send "
                f"tokens or weights over the data center's network: set it to {slices}, or to -1, which takes as "
                f"many as there are."
            )
        if devices % wanted:
            raise UserError(f"mesh.dcn_data is {wanted}, which does not divide {devices} devices; choose a divisor.")
        return wanted


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh over all devices of all processes, or the given ones, with Auto axes: the compiler chooses
    shardings that are not specified.

    On a torus, axes get whole dimensions if the sizes allow it, so that their devices are neighbors. Other platforms
    have no slices. There ``dcn_data`` divides the devices in order into equal groups: one per process if the number of
    processes matches.

    Raises:
      UserError: the axes do not multiply to the number of devices, or axes other than ``dcn_data`` cross slices.
    """
    devices = jax.devices() if devices is None else devices
    on_tpu = devices[0].platform == "tpu"
    slices = len({getattr(device, "slice_index", 0) for device in devices}) if on_tpu else 1
    sizes = shape.sizes(len(devices), slices)
    inside = shape.slice_sizes(len(devices), slices)
    joined = sizes[0] // inside[0]
    by_process = not on_tpu and joined == len({device.process_index for device in devices})
    if slices > 1 or (joined > 1 and by_process):
        placed = mesh_utils.create_hybrid_device_mesh(
            inside, (joined, 1, 1, 1), devices, process_is_granule=by_process, allow_split_physical_axes=on_tpu
        )
    else:
        placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=on_tpu)
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch's sequences, split over every token axis."""
    return NamedSharding(mesh, PartitionSpec(TOKEN_AXES))


def param_shardings(axes: Any, abstract: Any, mesh: Mesh) -> Any:
    """Return the sharding of every parameter from its logical axis names."""
    return jax.tree.map(
        lambda leaf, names: NamedSharding(mesh, partition_spec(names, leaf.shape, mesh)),
        abstract,
        axes,
    )


def local_rows(sharding: NamedSharding, rows: int) -> np.ndarray:
    """Return the sorted indices of a batch's rows that are on this process's devices."""
    places = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in places if index is not None]))


def place_rows(local: np.ndarray, mine: np.ndarray, rows: int, sharding: NamedSharding) -> jax.Array:
    """Return a batch of ``rows`` rows on the devices; each process supplies its own rows, ``mine``."""

    def part(index: Any) -> np.ndarray:
        return local[np.searchsorted(mine, np.arange(rows)[index[0]])]

    return jax.make_array_from_callback((rows, *local.shape[1:]), sharding, part)


def check_fits(architecture: Architecture, batch_sequences: int, microbatches: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise ``UserError`` if a batch, the width, the experts, or their hidden units cannot be split over the mesh."""
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
    if architecture.model_dim % mesh.shape["fsdp"]:
        raise UserError(
            f"model_dim is {architecture.model_dim}, which mesh.fsdp = {mesh.shape['fsdp']} does not divide, so every "
            f"device would hold whole matrices: choose a divisor, and use mesh.data for the other devices."
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
