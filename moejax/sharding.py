"""Define the mesh: its axes, the map from logical array axes to mesh axes, and functions that run on shards.

The mesh has four axes. Tokens are split over ``data``, ``fsdp`` and ``expert``. ``fsdp`` also splits parameters along
the residual or latent width, ``expert`` splits the experts, and ``tensor`` splits heads, hidden units and
vocabulary. TPU slices are the outermost part of ``data``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

T = TypeVar("T")

DATA, FSDP, EXPERT, TENSOR = MESH_AXES = ("data", "fsdp", "expert", "tensor")

DCN_DATA = "dcn_data"
"""The part of ``data`` that joins TPU slices over the data center's network."""

GROUP_AXES = (DATA, FSDP)
"""Mesh axes that split tokens into groups. The devices of a group, along ``expert``, hold different experts."""

TOKEN_AXES = (*GROUP_AXES, EXPERT)
"""Mesh axes that split tokens."""

RULES: Mapping[str, tuple[str, ...]] = {
    "batch": TOKEN_AXES,
    "embed": ("fsdp",),
    "latent": ("fsdp",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "hidden": ("tensor",),
    "vocab": ("tensor",),
    "expert": ("expert",),
}
"""Mesh axes of each logical axis; other axes are not split."""


def partition_spec(
    axes: Sequence[str | None], shape: Sequence[int], mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
) -> PartitionSpec:
    """Return the mesh axes that split each dimension of an array. No mesh axis splits two dimensions.

    A dimension that is not divisible by its mesh axes is not split. Vectors are not split either: this would save
    little memory, and each use would gather them.
    """
    if sum(axis != "layers" for axis in axes) < 2:
        return PartitionSpec(*(None for _ in axes))
    taken: set[str] = set()
    spec: list[tuple[str, ...] | None] = []
    for axis, size in zip(axes, shape, strict=True):
        mesh_axes = tuple(a for a in RULES.get(axis or "", ()) if mesh.shape[a] > 1 and a not in taken)
        if size % math.prod(mesh.shape[a] for a in mesh_axes):
            mesh_axes = ()
        taken |= set(mesh_axes)
        spec.append(mesh_axes or None)
    return PartitionSpec(*spec)


def on_many_devices() -> bool:
    """Return whether tracing is for a mesh (``jax.set_mesh``) of more than one device."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and mesh.size > 1


def constrain(x: jax.Array, axes: Sequence[str | None]) -> jax.Array:
    """Constrain the sharding of an activation; return it unchanged on one device or without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    if not on_many_devices():
        return x
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, partition_spec(axes, x.shape, mesh)))


def token_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of a mesh that split tokens, in order. A mesh may lack any of them."""
    return tuple(axis for axis in TOKEN_AXES if axis in sizes)


def on_token_shards(function: Callable[..., T], *arrays: jax.Array) -> T:
    """Compute ``function(*arrays)`` shard by shard, for a function that treats each token (or sequence) separately.

    The first axis of every array and result is the token axis. On a mesh (``jax.set_mesh``) every device computes its
    own tokens without communication. By default, XLA gathers all rows for a top-k, and sums whole tables for a scatter.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or AxisType.Manual in mesh.axis_types:
        return function(*arrays)
    if token_shards() == 1 or not can_split(arrays[0].shape[0]):
        return function(*arrays)
    tokens = PartitionSpec(token_axes(mesh.shape))
    return jax.shard_map(function, in_specs=tokens, out_specs=tokens, check_vma=False)(*arrays)


def token_shards(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None) -> int:
    """Return the number of parts into which a mesh splits tokens; None means the mesh of ``jax.set_mesh``, if any.

    With one part there is nothing to map and nothing to reduce. XLA crashes on a sum over groups of one device in a
    ``shard_map`` if the operand is split along an axis that the map does not name.
    """
    mesh = jax.sharding.get_abstract_mesh() if mesh is None else mesh
    return math.prod(mesh.shape[axis] for axis in token_axes(mesh.shape))


def can_split(sequences: int) -> bool:
    """Return whether a batch of sequences is divisible by the number of devices over which it is split."""
    return sequences % token_shards() == 0


def over_tokens(
    local: Callable[..., Any], split: Sequence[jax.Array], whole: Sequence[jax.Array] = (), summed: bool = False
) -> Any:
    """Compute ``local(*split, *whole)`` on each device, with the device's sequences of the arrays in ``split``.

    The result is the sum over devices if ``summed``; otherwise it is split like the arrays in ``split``.
    """
    if token_shards() == 1:
        return local(*split, *whole)

    def on_device(*arrays: jax.Array) -> Any:
        return jax.lax.psum(local(*arrays), TOKEN_AXES) if summed else local(*arrays)

    tokens = PartitionSpec(TOKEN_AXES)
    specs = (*(tokens for _ in split), *(PartitionSpec() for _ in whole))
    out = PartitionSpec() if summed else tokens
    # Arrays are whole along axes that are not named here. Naming them would sum gradients over groups of one device.
    on_devices = jax.shard_map(on_device, in_specs=specs, out_specs=out, axis_names=set(TOKEN_AXES), check_vma=False)
    return on_devices(*split, *whole)
