"""Compute the MoE block on one device or on a mesh: send tokens to their experts and return the outputs.

Routers, losses and counts use global arrays outside this block, so results depend on the mesh only by rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Float

from moejax.errors import UserError
from moejax.kernels.control_flow import cond_likely
from moejax.kernels.experts import Experts, apart, side_by_side
from moejax.routing.communication import COMMUNICATION, AllGather, Communication, Shard
from moejax.routing.dispatch import Dispatch, grouped
from moejax.routing.routing import Routing
from moejax.sharding import EXPERT, FSDP, GROUP_AXES, TENSOR, token_axes


def moe_block(
    x: Float[Array, "tokens model"],
    routing: Routing,
    experts: Experts,
    *,
    dispatch: Dispatch = grouped,
    communication: str = "all_gather",
    buffer_factor: float = 1.25,
    mesh: Mesh | AbstractMesh | None = None,
) -> Float[Array, "tokens model"]:
    """Return each token's weighted sum of its experts' outputs.

    On a mesh, tokens are split over all axes except ``tensor``, and experts over ``expert``. No token is dropped.

    Args:
      dispatch: function that computes a device's rows.
      communication: a key of ``COMMUNICATION``.
      buffer_factor: size of a device's row buffer (in ``all_to_all``, of its buffer for each device), as a multiple of
        its rows in a balanced routing.
      mesh: device mesh; None for the mesh set by ``jax.set_mesh``.

    Raises:
      UserError: the mesh does not divide tokens, experts or hidden units.
    """
    sizes = dict((jax.sharding.get_abstract_mesh() if mesh is None else mesh).shape)
    if math.prod(sizes.values()) == 1:
        return dispatch(x, routing, experts)
    _check(sizes, x, experts)
    tokens = P(token_axes(sizes))
    # If a token's slots are not contiguous, every device reads all slots.
    slots = P() if routing.top_k is None else tokens
    is_split = FSDP in sizes and x.shape[1] % sizes[FSDP] == 0

    def on_device(x: Array, token: Array, expert: Array, weight: Array, experts: Experts) -> Array:
        experts = _with_one_output_bias(_gathered(experts, x.dtype, is_split), sizes)
        here = dataclasses.replace(
            routing, token=token, expert=expert, combine_weight=weight, probabilities=None, logits=None
        )
        shard = Shard(tuple(sizes.items()), x.shape[0], experts.num_experts, buffer_factor)

        def block(way: Communication, x: Array, weight: Array, experts: Experts) -> Array:
            rows, received = way.dispatch(x, weight)  # permute, communicate
            y = dispatch(rows, received, experts)  # permute, gate and up, activation, down, unpermute
            return way.combine(y)  # communicate, combine

        gathering = AllGather.of(here, shard)
        is_gathered = shard.expert_devices == 1 or here.top_k is None
        way = gathering if is_gathered else COMMUNICATION[communication].of(here, shard)
        if (fits := way.fits) is None:
            return block(way, x, weight, experts)[None]
        # A group whose buffers are too small in a layer and step gathers instead.
        y: Any = _with_fallback(block, fits, way, gathering, x, weight, experts)
        return y[None]

    # With split hidden units, every device has a part of each sum. Parts are added outside shard_map, where the
    # gradient of an addition is a copy; inside, the gradient would be another reduction over the mesh.
    parts = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(tokens, slots, slots, slots, _specs(experts, sizes, FSDP if is_split else None)),
        out_specs=P(TENSOR if TENSOR in sizes else None, *tokens),
        check_vma=False,
    )(x, routing.token, routing.expert, routing.combine_weight, experts)
    return lax.reduce_sum(parts, (0,))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_fallback(block: Callable[..., Array], fits: Array, way: Any, fallback: Any, *given: Any) -> Array:
    """Return ``block(way, *given)`` if ``fits``, else ``block(fallback, *given)``.

    The backward pass uses saved values for the first branch and recomputes the second. Plain differentiation would save
    values for both branches.
    """
    return cond_likely(
        fits,
        lambda way, _, *given: block(way, *given),
        lambda _, fallback, *given: block(fallback, *given),
        *(way, fallback, *given),
    )


def _save(block: Callable[..., Array], fits: Array, way: Any, fallback: Any, *given: Any) -> tuple[Array, Any]:
    # A backward function is a pytree of its inputs and its saved values. The conditional outputs only the saved values,
    # because the inputs are already available.
    backward: Any = jax.eval_shape(lambda *operands: jax.vjp(block, *operands)[1], way, *given)

    def first(way: Any, _: Any, *given: Any) -> tuple[Array, list[Array]]:
        backward: Any
        y, backward = jax.vjp(block, way, *given)
        return y, backward.opaque_residuals

    def second(_: Any, fallback: Any, *given: Any) -> tuple[Array, list[Array]]:
        return block(fallback, *given), jax.tree.map(jnp.zeros_like, backward.opaque_residuals)

    y, computed = cond_likely(fits, first, second, way, fallback, *given)
    backward = dataclasses.replace(backward, args_res=[way, *given], opaque_residuals=computed)
    return y, (fits, backward, fallback, given)


def _gradients(block: Callable[..., Array], saved: Any, dy: Array) -> tuple[Any, ...]:
    fits, backward, fallback, given = saved
    gradients = cond_likely(
        fits,
        lambda backward, _, dy, *given: backward(dy)[1:],
        lambda _, fallback, dy, *given: jax.vjp(partial(block, fallback), *given)[1](dy),
        *(backward, fallback, dy, *given),
    )
    return None, None, None, *gradients


_with_fallback.defvjp(_save, _gradients)


def _gathered(experts: Experts, dtype: jnp.dtype, is_split: bool) -> Experts:
    """Return the matrices in ``dtype``, gathered in this type if an axis splits them along the model dimension.
    Gradients are summed in the original type and reduce-scattered."""
    into, out_of = (_gathered_into, _gathered_out_of) if is_split else (side_by_side, _unchanged)
    return dataclasses.replace(
        experts,
        # The cast of the device's part also places gate and up side by side, the layout of their matmul.
        gate_up=apart(_in_type(into, dtype, experts.gate_up)),
        down=_in_type(out_of, dtype, experts.down),
    )


def _unchanged(matrix: Array) -> Array:
    return matrix


def _gathered_into(gate_up: Array) -> Array:
    return lax.all_gather(side_by_side(gate_up), FSDP, axis=1, tiled=True)


def _gathered_out_of(matrix: Array) -> Array:
    parts = lax.all_gather(matrix, FSDP)
    return jnp.moveaxis(parts, 0, 2).reshape(*matrix.shape[:2], -1)


def _in_type(gather: Callable[[Array], Array], dtype: jnp.dtype, matrix: Array) -> Array:
    """Return ``gather(matrix.astype(dtype))``; its gradient is computed in the matrix's own type."""

    like = jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)

    @jax.custom_vjp
    def gathered(matrix: Array) -> Array:
        return gather(matrix.astype(dtype))

    def back(_: None, whole: Array) -> tuple[Array]:
        return tuple(jax.linear_transpose(gather, like)(whole.astype(like.dtype)))

    gathered.defvjp(lambda matrix: (gathered(matrix), None), back)
    return gathered(matrix)


def _with_one_output_bias(experts: Experts, sizes: dict[str, int]) -> Experts:
    """Keep the output bias on only one tensor-parallel device, because outputs are summed over these devices."""
    if experts.down_bias is None or TENSOR not in sizes:
        return experts
    first = lax.axis_index(TENSOR) == 0
    return dataclasses.replace(experts, down_bias=jnp.where(first, experts.down_bias, 0))


def _specs(experts: Experts, sizes: dict[str, int], fsdp: str | None) -> Experts:
    expert, tensor = (axis if axis in sizes else None for axis in (EXPERT, TENSOR))
    into, out_of = P(expert, None, fsdp, tensor), P(expert, tensor, fsdp)
    return dataclasses.replace(
        experts,
        gate_up=into,
        down=out_of,
        gate_up_bias=None if experts.gate_up_bias is None else P(expert, None, tensor),
        down_bias=None if experts.down_bias is None else P(expert),
    )


def _check(sizes: dict[str, int], x: Array, experts: Experts) -> None:
    devices = math.prod(sizes.get(axis, 1) for axis in (*GROUP_AXES, EXPERT))
    for what, count, parts in (
        ("tokens", x.shape[0], devices),
        ("experts", experts.num_experts, sizes.get(EXPERT, 1)),
        ("hidden units of an expert", experts.down.shape[1], sizes.get(TENSOR, 1)),
    ):
        if count % parts:
            raise UserError(
                f"{count} {what} cannot be split equally over {parts} devices of the mesh {sizes}; change the number "
                f"of {what}, or the mesh."
            )
