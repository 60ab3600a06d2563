"""Any dispatcher over a mesh: tokens split over devices, experts split over some of them, nothing dropped.

Devices along the ``expert`` axis gather each other's tokens, compute the assignments of their own experts, and sum
the parts while scattering them back. The router ran before, on whole arrays, so no result depends on the mesh.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from moejax.routing.experts import Experts
from moejax.routing.routing import Routing

Dispatch = Callable[[Array, Routing, Experts], Array]

GROUP_AXES, EXPERT, TENSOR = ("data", "fsdp"), "expert", "tensor"
"""Mesh axes that split tokens into groups; the axis that splits tokens of a group, and experts; the one that splits
the experts' hidden units. A mesh may lack any of them."""


def expert_parallel(dispatch: Dispatch, mesh: Mesh | AbstractMesh | None = None) -> Dispatch:
    """A dispatcher for a mesh (None: the one of ``jax.set_mesh``), which runs ``dispatch`` on each device."""

    def on_mesh(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
        sizes = dict((jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape)
        tokens = P(tuple(axis for axis in (*GROUP_AXES, EXPERT) if axis in sizes))
        _check(sizes, x, experts)
        # Where the entries of a token lie anywhere, every device reads all entries.
        entries = P() if routing.per_token is None else tokens

        def on_device(x, token, expert, gate, experts):
            local = _local_routing(routing, token, expert, gate, x.shape[0], experts.num_experts, sizes)
            y = dispatch(_gathered(x, sizes), local, _once(experts, sizes))
            return _summed(y, sizes)

        return jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(tokens, entries, entries, entries, _specs(experts, sizes)),
            out_specs=tokens,
            check_vma=False,
        )(x, routing.token, routing.expert, routing.gate, experts)

    return on_mesh


def _local_routing(routing: Routing, token, expert, gate, tokens_here: int, experts_here: int, sizes) -> Routing:
    """The entries of this device's experts and group of tokens, numbered as they are here; phantoms for the rest."""
    if routing.per_token is not None:
        token, expert, gate = (_gathered(array, sizes) for array in (token, expert, gate))
    num_tokens = tokens_here * sizes.get(EXPERT, 1)
    token = token - _index(GROUP_AXES, sizes) * num_tokens
    expert = expert - _index((EXPERT,), sizes) * experts_here
    here = (token >= 0) & (token < num_tokens) & (expert >= 0) & (expert < experts_here)
    return Routing(
        token=jnp.where(here, token, 0),
        expert=expert,
        gate=gate,
        probabilities=None,
        logits=None,
        num_tokens=num_tokens,
        num_experts=experts_here,
        balanced_load=routing.balanced_load * num_tokens // routing.num_tokens,
        per_token=routing.per_token,
        capacity=routing.capacity,
    ).keep(here)


def _index(axes, sizes) -> Array | int:
    """Number of this device along some axes, in the order in which they split an array."""
    present = tuple(axis for axis in axes if axis in sizes)
    return lax.axis_index(present) if present else 0


def _gathered(array, sizes):
    return lax.all_gather(array, EXPERT, tiled=True) if EXPERT in sizes else array


def _summed(y, sizes):
    y = lax.psum(y, TENSOR) if TENSOR in sizes else y
    return lax.psum_scatter(y, EXPERT, tiled=True) if EXPERT in sizes else y


def _once(experts: Experts, sizes) -> Experts:
    """With hidden units split, every part adds to the output, but only one may add the output's bias."""
    if experts.down_bias is None or TENSOR not in sizes:
        return experts
    first = lax.axis_index(TENSOR) == 0
    return dataclasses.replace(experts, down_bias=jnp.where(first, experts.down_bias, 0))


def _specs(experts: Experts, sizes) -> Experts:
    expert, tensor = (axis if axis in sizes else None for axis in (EXPERT, TENSOR))
    into, out_of, hidden = P(expert, None, tensor), P(expert, tensor, None), P(expert, tensor)
    return dataclasses.replace(
        experts,
        gate=into,
        up=into,
        down=out_of,
        gate_bias=None if experts.gate_bias is None else hidden,
        up_bias=None if experts.up_bias is None else hidden,
        down_bias=None if experts.down_bias is None else P(expert),
    )


def _check(sizes, x, experts: Experts) -> None:
    devices = math.prod(sizes.get(axis, 1) for axis in (*GROUP_AXES, EXPERT))
    for what, count, parts in (
        ("tokens", x.shape[0], devices),
        ("experts", experts.num_experts, sizes.get(EXPERT, 1)),
        ("hidden units of an expert", experts.gate.shape[2], sizes.get(TENSOR, 1)),
    ):
        if count % parts:
            raise ValueError(
                f"{count} {what} cannot be split over {parts} devices of the mesh {sizes}; every device gets as many: "
                f"change the number of {what}, or the mesh."
            )
