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
    """Number of devices along each mesh axis within a slice. An axis of -1 uses the remaining devices.

    Slices of TPUs are connected only by the data-center network (DCN). Each slice holds a copy of the state. Only sums
    over tokens, mainly gradient sums, cross between slices.
    """

    dcn_data: Devices = -1
    """Number of slices; -1 for all existing slices. The slices are the outermost part of the mesh axis ``data``."""
    data: Devices = -1
    fsdp: Devices = 1
    expert: Devices = 1
    tensor: Devices = 1

    def sizes(self, devices: int, slices: int = 1) -> tuple[int, ...]:
        """Return the axis sizes in the order of ``MESH_AXES``, over all slices. Only ``data`` spans several slices.

        Raises:
          UserError: the axes do not multiply to the number of devices, or axes other than ``dcn_data`` cross slices.
        """
        data, *others = self.slice_sizes(devices, slices)
        return (data * self.joined(devices, slices), *others)

    def slice_sizes(self, devices: int, slices: int = 1) -> tuple[int, ...]:
        """Return the axis sizes in the order of ``MESH_AXES`` within one slice."""
        slices = self.joined(devices, slices)
        devices //= slices
        given = tuple(getattr(self, axis) for axis in MESH_AXES)
        fixed = math.prod(size for size in given if size != -1)
        text = ", ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, given, strict=True))
        if given.count(-1) > 1 or any(size < 1 and size != -1 for size in given):
            raise UserError(f"mesh is {text}; axes must be positive, except that one may be -1.")
        if (-1 in given and devices % fixed) or (-1 not in given and fixed != devices):
            where = f"{devices} devices"
            if slices > 1:
                where = (
                    f"the {devices} devices of each of {slices} slices, and axes other than dcn_data would send "
                    "tokens or weights over the data-center network"
                )
            raise UserError(
                f"mesh is {text}, which does not fit {where}; the axes must multiply to {devices}"
                + (
                    f", and {devices} is not divisible by {fixed}."
                    if -1 in given
                    else " (use -1 on one axis to fill it)."
                )
            )
        return tuple(devices // fixed if size == -1 else size for size in given)

    def joined(self, devices: int, slices: int = 1) -> int:
        """Return the number of device groups along ``dcn_data``: the number of slices unless ``dcn_data`` is set."""
        wanted = slices if self.dcn_data == -1 else self.dcn_data
        if wanted < 1 or (slices > 1 and wanted != slices):
            raise UserError(
                f"mesh.dcn_data is {self.dcn_data} but the devices are in {slices} slices. Then other axes would "
                f"send tokens or weights over the data-center network; set dcn_data to {slices}, or to -1 for the "
                "number of slices."
            )
        if devices % wanted:
            raise UserError(
                f"mesh.dcn_data is {wanted}, but {devices} devices cannot be split into that many equal groups; "
                "choose a divisor."
            )
        return wanted


def make_mesh(shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh over ``devices``, by default all devices of all processes. Its axes have the type Auto: the
    compiler chooses unspecified shardings.

    On a TPU torus, each axis gets whole torus dimensions if the sizes allow it, so that its devices are neighbors.
    Other platforms have no slices; there ``dcn_data`` divides the devices, in order, into equal groups. If the number
    of groups equals the number of processes, each process is a group.

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
    """Return the sorted indices of the batch rows on this process's devices."""
    places = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index] for index in places if index is not None]))


def place_rows(local: np.ndarray, mine: np.ndarray, rows: int, sharding: NamedSharding) -> jax.Array:
    """Return a batch of ``rows`` rows on the devices. Each process supplies the rows ``local``, whose indices are
    ``mine``.
    """

    def part(index: Any) -> np.ndarray:
        return local[np.searchsorted(mine, np.arange(rows)[index[0]])]

    return jax.make_array_from_callback((rows, *local.shape[1:]), sharding, part)


def check_fits(architecture: Architecture, batch_sequences: int, microbatches: int, mesh: Mesh | AbstractMesh) -> None:
    """Raise ``UserError`` if a batch, the width, the experts, or their hidden units cannot be split over the mesh."""
    shards = token_shards(mesh)
    if batch_sequences % shards:
        raise UserError(
            f"A batch has {batch_sequences} sequences, which is not divisible by the {shards} token shards (data x "
            "fsdp x expert); change batch_tokens or the mesh."
        )
    if batch_sequences // microbatches % shards:
        raise UserError(
            f"A microbatch has {batch_sequences // microbatches} sequences ({batch_sequences} in {microbatches} "
            f"microbatches), which is not divisible by the {shards} token shards (data x fsdp x expert); change "
            "microbatches, batch_tokens or the mesh."
        )
    if architecture.model_dim % mesh.shape["fsdp"]:
        raise UserError(
            f"model_dim is {architecture.model_dim}, which is not divisible by mesh.fsdp = {mesh.shape['fsdp']}, so "
            "every device would hold whole matrices. Choose a divisor, and use mesh.data for the other devices."
        )
    if architecture.is_moe and architecture.num_experts % mesh.shape["expert"]:
        raise UserError(
            f"num_experts is {architecture.num_experts}, which is not divisible by mesh.expert = "
            f"{mesh.shape['expert']}; all devices along that axis hold equally many experts. Choose a divisor."
        )
    if architecture.is_moe and architecture.expert_hidden % mesh.shape["tensor"]:
        raise UserError(
            f"expert_hidden is {architecture.expert_hidden}, which is not divisible by mesh.tensor = "
            f"{mesh.shape['tensor']}; all devices along that axis hold equally many hidden units of an expert. "
            "Choose a divisor."
        )
