"""Where tokens lie on a mesh, and functions of single tokens that run there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
from jax import Array
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

T = TypeVar("T")

GROUP_AXES, EXPERT, TENSOR = ("data", "fsdp"), "expert", "tensor"
"""Mesh axes that split tokens into groups; the axis that splits tokens of a group, and experts; the one that splits
the experts' hidden units. A mesh may lack any of them."""


def token_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Those axes of a mesh over which tokens are split, in their order."""
    return tuple(axis for axis in (*GROUP_AXES, EXPERT) if axis in sizes)


def where_tokens_lie(function: Callable[..., T], *arrays: Array) -> T:
    """``function(*arrays)`` of arrays whose first axis is that of tokens, or of their sequences, and of each by itself.

    On a mesh (``jax.set_mesh``) every device computes it for its own, and nothing travels: left alone, XLA gathers all
    rows for a top-k, and sums whole tables for a scatter.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or AxisType.Manual in mesh.axis_types:
        return function(*arrays)
    axes = token_axes(mesh.shape)
    shards = math.prod(mesh.shape[axis] for axis in axes)
    if shards == 1 or arrays[0].shape[0] % shards:
        return function(*arrays)
    return jax.shard_map(function, in_specs=P(axes), out_specs=P(axes), check_vma=False)(*arrays)
