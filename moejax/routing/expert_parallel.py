"""Any dispatcher over a mesh: tokens split over devices, experts split over some of them, nothing dropped.

The router ran before, on whole arrays, so no result depends on the mesh. What is left is how a token meets an expert
on another device along the ``expert`` axis: all tokens are gathered there, or only the rows that are needed travel.
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

from moejax.errors import UserError
from moejax.routing.experts import Experts
from moejax.routing.layout import arrange, by_expert, by_slot, collect, spread
from moejax.routing.ragged_exchange import ragged_exchange
from moejax.routing.routing import Routing
from moejax.routing.token_shards import EXPERT, GROUP_AXES, TENSOR, token_axes

Dispatch = Callable[[Array, Routing, Experts], Array]

FSDP = "fsdp"
"""The axis that also splits the experts' matrices along the residual width, where it divides that."""


def expert_parallel(
    dispatch: Dispatch,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    exchange: str = "gather",
    buffer_factor: float = 2.0,
) -> Dispatch:
    """A dispatcher for a mesh (None: the one of ``jax.set_mesh``), which runs ``dispatch`` on each device.

    ``exchange`` is a key of ``EXCHANGES``; ``buffer_factor`` is the room for rows on each device, and in ``all_to_all``
    to each, as a multiple of what a balanced routing sends there.
    """

    def on_mesh(x: Float[Array, "tokens model"], routing: Routing, experts: Experts) -> Float[Array, "tokens model"]:
        sizes = dict((jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape)
        tokens = P(token_axes(sizes))
        _check(sizes, x, experts)
        # Where the entries of a token lie anywhere, every device reads all entries.
        entries = P() if routing.per_token is None else tokens
        split = FSDP in sizes and experts.gate.shape[1] % sizes[FSDP] == 0

        def on_device(x, token, expert, gate, experts):
            here = dataclasses.replace(routing, token=token, expert=expert, gate=gate, probabilities=None, logits=None)
            experts = _once(_whole(experts, x.dtype, split), sizes)
            return EXCHANGES[exchange](dispatch, x, here, experts, sizes, buffer_factor)[None]

        # With hidden units split, every device has a part of each sum. They are added out here, where the gradient of
        # an addition is a copy; in there it would be another addition over the mesh.
        parts = jax.shard_map(
            on_device,
            mesh=mesh,
            in_specs=(tokens, entries, entries, entries, _specs(experts, sizes, FSDP if split else None)),
            out_specs=P(TENSOR if TENSOR in sizes else None, *tokens),
            check_vma=False,
        )(x, routing.token, routing.expert, routing.gate, experts)
        return lax.reduce_sum(parts, (0,))

    return on_mesh


def gather(dispatch: Dispatch, x, routing: Routing, experts: Experts, sizes, buffer_factor: float) -> Array:
    """Every device along the expert axis reads all tokens of its group; the sums come back scattered.

    It serves as many rows at once as there is room for, and where more are its own, the others in further turns.
    """
    local = _local_routing(routing, routing.token, routing.expert, routing.gate, x.shape[0], experts.num_experts, sizes)
    # Other devices serve most of these entries.
    entries = local.expert.shape[0]
    room = math.ceil(buffer_factor * entries / sizes.get(EXPERT, 1))
    local = dataclasses.replace(local, room=min(room, entries))
    return _summed(dispatch(_gathered(x, sizes), local, experts), sizes)


def all_to_all(dispatch: Dispatch, x, routing: Routing, experts: Experts, sizes, buffer_factor: float) -> Array:
    """Each assignment's row travels to the device of its expert and back, in buffers of one size for every pair.

    Nothing is dropped: where any device of a group would send more to another than fits, the whole group gathers
    instead, in this layer of this step. So do routings whose entries do not lie token after token.
    """
    devices = sizes.get(EXPERT, 1)
    if devices == 1 or routing.per_token is None:
        return gather(dispatch, x, routing, experts, sizes, buffer_factor)
    entries = routing.expert.shape[0]
    room = min(math.ceil(buffer_factor * entries / devices), entries)
    device = jnp.where(routing.serves, routing.expert // experts.num_experts, devices)
    to_device = dataclasses.replace(_numbered_here(routing, x), expert=device, num_experts=devices)
    layout = by_slot(to_device, room)
    fits = jnp.diff(layout.offsets).max() <= room

    def exchange(values: Array) -> Array:
        rows = values.reshape(devices, room, *values.shape[1:])
        return lax.all_to_all(rows, EXPERT, split_axis=0, concat_axis=0).reshape(values.shape)

    def travel(x: Array, gate: Array, experts: Experts) -> Array:
        expert = (routing.expert % experts.num_experts).at[layout.source]
        expert = exchange(expert.get(mode="fill", fill_value=experts.num_experts))
        received = _of_rows(expert, exchange(arrange(gate, layout)), entries, experts)
        y = dispatch(exchange(spread(x, to_device, layout)), received, experts)
        return collect(exchange(y), to_device, layout)

    def stay(x: Array, gate: Array, experts: Experts) -> Array:
        return gather(dispatch, x, dataclasses.replace(routing, gate=gate), experts, sizes, buffer_factor)

    # All devices that exchange rows with each other must take the same way.
    everywhere = lax.pmin(fits.astype(jnp.int32), EXPERT) == 1
    return lax.cond(everywhere, travel, stay, x, routing.gate, experts)


def ragged_all_to_all(dispatch: Dispatch, x, routing: Routing, experts: Experts, sizes, buffer_factor: float) -> Array:
    """Each assignment's row travels to the device of its expert and back, with no room between rows: see
    ``ragged_exchange`` for where that is fast.

    Only what arrives on a device has its bound, so two devices may share a load that ``all_to_all`` has no room for.
    Where it is exceeded, the whole group gathers instead, as there.
    """
    devices = sizes.get(EXPERT, 1)
    if devices == 1 or routing.per_token is None:
        return gather(dispatch, x, routing, experts, sizes, buffer_factor)
    entries = routing.expert.shape[0]
    room = min(math.ceil(buffer_factor * entries), devices * entries)
    here = _numbered_here(routing, x)
    layout = by_expert(here)
    # Loads of all experts from all devices: [from, to, expert there].
    loads = lax.all_gather(jnp.diff(layout.offsets), EXPERT).reshape(devices, devices, experts.num_experts)
    rows_between = loads.sum(axis=2)

    def travel(x: Array, gate: Array, experts: Experts) -> Array:
        ends = jnp.cumsum(loads[:, lax.axis_index(EXPERT)].reshape(-1))
        slot = jnp.arange(room, dtype=jnp.int32)
        expert = jnp.searchsorted(ends, slot, side="right").astype(jnp.int32) % experts.num_experts
        expert = jnp.where(slot < ends[-1], expert, experts.num_experts)
        rows, weight = (
            ragged_exchange(values, rows_between, room, EXPERT)
            for values in (spread(x, here, layout), arrange(gate, layout))
        )
        y = dispatch(rows, _of_rows(expert, weight, entries, experts), experts)
        return collect(ragged_exchange(y, rows_between.T, entries, EXPERT), here, layout)

    def stay(x: Array, gate: Array, experts: Experts) -> Array:
        return gather(dispatch, x, dataclasses.replace(routing, gate=gate), experts, sizes, buffer_factor)

    # All devices of a group know all its loads, and so take the same way.
    return lax.cond(rows_between.sum(axis=0).max() <= room, travel, stay, x, routing.gate, experts)


EXCHANGES = {"gather": gather, "all_to_all": all_to_all, "ragged_all_to_all": ragged_all_to_all}
"""How tokens and experts meet over the expert axis. Neither drops anything, so neither changes a result."""


def _numbered_here(routing: Routing, x: Array) -> Routing:
    """The entries of this device's own tokens, numbered as they are here."""
    entries = routing.expert.shape[0]
    token = jnp.arange(entries, dtype=jnp.int32) // (entries // x.shape[0])
    return dataclasses.replace(routing, token=token, num_tokens=x.shape[0])


def _of_rows(expert: Array, gate: Array, entries: int, experts: Experts) -> Routing:
    """The routing of rows that have come from others, each for one expert; ``entries`` come where all are balanced."""
    return Routing(
        token=jnp.arange(expert.shape[0], dtype=jnp.int32),
        expert=expert,
        gate=gate,
        probabilities=None,
        logits=None,
        num_tokens=expert.shape[0],
        num_experts=experts.num_experts,
        balanced_load=entries // experts.num_experts,
        per_token=1,
    )


def _local_routing(routing: Routing, token, expert, gate, tokens_here: int, experts_here: int, sizes) -> Routing:
    """The entries of this device's experts and group of tokens, numbered as they are here; phantoms for the rest."""
    num_tokens = tokens_here * sizes.get(EXPERT, 1)
    if routing.per_token is None:
        token = token - _index(GROUP_AXES, sizes) * num_tokens
    else:
        expert, gate = (_gathered(array, sizes) for array in (expert, gate))
        token = jnp.arange(expert.shape[0], dtype=jnp.int32) // routing.per_token
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


# Parts are stacked in front, here and in the gradients: where whole first or last dimensions are scattered, XLA's TPU
# compiler adds up everything everywhere instead, which sends twice the bytes.


def _gathered(array, sizes):
    return lax.all_gather(array, EXPERT).reshape(-1, *array.shape[1:]) if EXPERT in sizes else array


def _summed(y, sizes):
    return lax.psum_scatter(y.reshape(sizes[EXPERT], -1, *y.shape[1:]), EXPERT) if EXPERT in sizes else y


def _whole(experts: Experts, dtype: jnp.dtype, split: bool) -> Experts:
    """Matrices in a type; where an axis splits them along the residual width, gathered in that type. Their gradients
    are added up in the type that they had, and come back scattered."""
    into, out_of = (_gathered_into, _gathered_out_of) if split else (_as_it_is, _as_it_is)
    return dataclasses.replace(
        experts,
        gate=_in_type(into, dtype, experts.gate),
        up=_in_type(into, dtype, experts.up),
        down=_in_type(out_of, dtype, experts.down),
    )


def _as_it_is(matrix: Array) -> Array:
    return matrix


def _gathered_into(matrix: Array) -> Array:
    return lax.all_gather(matrix, FSDP, axis=1, tiled=True)


def _gathered_out_of(matrix: Array) -> Array:
    parts = lax.all_gather(matrix, FSDP)
    return jnp.moveaxis(parts, 0, 2).reshape(*matrix.shape[:2], -1)


def _in_type(gather: Callable[[Array], Array], dtype: jnp.dtype, matrix: Array) -> Array:
    """``gather(matrix.astype(dtype))``, whose gradient goes back in the matrix's own type."""

    like = jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)

    @jax.custom_vjp
    def gathered(matrix: Array) -> Array:
        return gather(matrix.astype(dtype))

    def back(_: None, whole: Array) -> tuple[Array]:
        return tuple(jax.linear_transpose(gather, like)(whole.astype(like.dtype)))

    gathered.defvjp(lambda matrix: (gathered(matrix), None), back)
    return gathered(matrix)


def _once(experts: Experts, sizes) -> Experts:
    """With hidden units split, every part adds to the output, but only one may add the output's bias."""
    if experts.down_bias is None or TENSOR not in sizes:
        return experts
    first = lax.axis_index(TENSOR) == 0
    return dataclasses.replace(experts, down_bias=jnp.where(first, experts.down_bias, 0))


def _specs(experts: Experts, sizes, fsdp: str | None) -> Experts:
    expert, tensor = (axis if axis in sizes else None for axis in (EXPERT, TENSOR))
    into, out_of, hidden = P(expert, fsdp, tensor), P(expert, tensor, fsdp), P(expert, tensor)
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
            raise UserError(
                f"{count} {what} cannot be split over {parts} devices of the mesh {sizes}; every device gets as many: "
                f"change the number of {what}, or the mesh."
            )
