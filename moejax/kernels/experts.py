"""The experts of one layer: SwiGLU feed-forwards of one shape, as stacked arrays; the reference that applies them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul import REFERENCE, GroupedMatmul, grouped_matmul
from moejax.kernels.permutation import Layout, permute, permute_weights, unpermute
from moejax.kernels.quantization import in_8_bits, matmul
from moejax.kernels.quantization import reference as in_8_bits_reference
from moejax.kernels.saved_names import MOE_GATE_UP
from moejax.pytree import pytree

Activation = Callable[[Array, Array], Array]
"""From the rows of the gate and up projections to the hidden rows."""


def swiglu(gate: Float[Array, "*rows hidden"], up: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
    """silu(gate) · up (Shazeer 2020)."""
    return jax.nn.silu(gate) * up


def clamped_swiglu(
    gate: Float[Array, "*rows hidden"], up: Float[Array, "*rows hidden"]
) -> Float[Array, "*rows hidden"]:
    """The activation of gpt-oss: clamped at 7, a sigmoid of slope 1.702, and one added to ``up``."""
    gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1.0)


ACTIVATIONS = {"swiglu": swiglu, "clamped_swiglu": clamped_swiglu}
"""Activations of experts by ``Architecture.activation``."""


@pytree
@dataclass(frozen=True)
class Experts:
    """Expert e maps a row x to activation(x·gate + gate_bias, x·up + up_bias)·down[e] + down_bias[e], where gate and up
    are the two matrices of gate_up[e], and their biases the two vectors of gate_up_bias[e]."""

    gate_up: Any
    """Float[experts, 2, model, hidden]"""
    down: Any
    """Float[experts, hidden, model]"""
    gate_up_bias: Any = None
    """Float[experts, 2, hidden] or None"""
    down_bias: Any = None
    """Float[experts, model] or None"""
    activation: Activation = field(default=swiglu, metadata={"static": True})
    quantization: str = field(default="none", metadata={"static": True})
    """One of ``moejax.kernels.quantization.QUANTIZATIONS``: what their products are computed in."""

    @property
    def num_experts(self) -> int:
        return self.down.shape[0]


def side_by_side(gate_up: Float[Array, "*stack 2 model hidden"]) -> Float[Array, "*stack model twice_hidden"]:
    """Gate and up as one matrix, the columns of up behind those of gate.

    They are stored as two, whose sums and steps are as fast as those of any other matrix. Where memory is in tiles, as
    on a TPU, [model, 2, hidden] is not: XLA counts 1.5 times the cycles for a step of Adam. One behind the other, a
    mesh that splits ``hidden`` would not split both.
    """
    *stack, _, model, hidden = gate_up.shape
    return gate_up.swapaxes(-3, -2).reshape(*stack, model, 2 * hidden)


def apart(matrix: Float[Array, "*stack model twice_hidden"]) -> Float[Array, "*stack 2 model hidden"]:
    """The inverse of ``side_by_side``; one after the other, XLA removes both."""
    return matrix.reshape(*matrix.shape[:-1], 2, -1).swapaxes(-3, -2)


class Products(NamedTuple):
    """How rows meet the arrays of their experts."""

    matmul: Callable[[Array, Array], Array]
    """Rows times matrices, summed in float32; grouped products come out in the type of the rows."""
    vectors: Callable[[Array], Array]
    """Vectors of the experts as vectors of the rows, or broadcasting to them."""


def batched(quantization: str) -> Products:
    """For rows [..., rows, D] and arrays [..., D, F] whose leading axes match or broadcast."""
    in_full = partial(jnp.matmul, preferred_element_type=jnp.float32)
    return Products(
        matmul=in_full if quantization == "none" else partial(matmul, quantization),
        vectors=lambda vector: vector[..., None, :],
    )


def grouped(backend: GroupedMatmul, offsets: Int[Array, " experts_and_one"], rows: int) -> Products:
    """For rows [rows, D] in the order of their experts, which begin at ``offsets``, and arrays [experts, D, F]."""
    group_sizes = jnp.diff(offsets)
    # Rows behind the last expert's are nobody's: their results are not read.
    expert = jnp.searchsorted(offsets[1:-1], jnp.arange(rows, dtype=offsets.dtype), side="right")

    return Products(
        matmul=lambda x, matrix: grouped_matmul(backend, x, matrix, group_sizes),
        vectors=lambda vector: vector[expert],
    )


def project_up(
    rows: Float[Array, "... rows model"], experts: Experts, products: Products | None = None
) -> Float[Array, "... rows twice_hidden"]:
    """Gate and up projections of one product, in its type; with biases in float32. Products are ``batched`` unless
    given."""
    products = products or batched(experts.quantization)
    gate_up = products.matmul(rows, side_by_side(experts.gate_up))
    if (bias := experts.gate_up_bias) is None:
        return gate_up
    return gate_up.astype(jnp.float32) + products.vectors(bias.reshape(*bias.shape[:-2], -1)).astype(jnp.float32)


def project_down(
    gate_up: Float[Array, "... rows twice_hidden"],
    weight: Float[Array, "... rows"],
    experts: Experts,
    products: Products | None = None,
) -> Float[Array, "... rows model"]:
    """Weighted outputs in float32; as the hidden rows carry the weight, its gradient needs no outputs."""
    products = products or batched(experts.quantization)
    # Halved before they are widened: XLA would write both down in float32.
    gate, up = (half.astype(jnp.float32) for half in jnp.split(gate_up, 2, axis=-1))
    hidden = (weight[..., None] * experts.activation(gate, up)).astype(experts.down.dtype)
    y = products.matmul(hidden, experts.down).astype(jnp.float32)
    if experts.down_bias is None:
        return y
    return y + weight[..., None] * products.vectors(experts.down_bias).astype(jnp.float32)


LayoutWith = Callable[[int], Layout]
"""From a number of empty rows behind the last assignment to the layout by expert with as many."""


def reference(
    x: Float[Array, "tokens model"],
    combine_weight: Float[Array, " assignments"],
    layout_with: LayoutWith,
    experts: Experts,
    *,
    tokens_per_expert: int,
) -> Float[Array, "tokens model"]:
    """Each token's sum of its experts' outputs, times their weights: the other kernels fuse some of these steps.

    ``tokens_per_expert`` is the number of an expert's assignments in balance.
    """
    layout = layout_with(0)
    rows, weight = permute(x, layout), permute_weights(combine_weight, layout)
    backend = REFERENCE
    if experts.quantization != "none":
        backend = in_8_bits(backend, in_8_bits_reference, experts.quantization)
    products = grouped(backend, layout.offsets, rows.shape[0])
    y = project_down(project_up(rows, experts, products), weight, experts, products)
    return unpermute(y.astype(x.dtype), layout)


def with_backward(forward: Callable[..., tuple[Array, ...]], backward: Callable[..., Any]) -> Callable[..., Array]:
    """``outputs(static, rows, weight, offsets, experts)`` of two functions of experts and their rows.

    ``forward(static, is_saving, rows, weight, offsets, experts)`` returns the weighted outputs and, if
    ``is_saving``, the gate and up projections. From the same arrays, those and the outputs' gradient,
    ``backward(static, ...)`` returns the gradients of rows, weights and experts. The activation is computed again
    rather than saved.
    """

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def outputs(static: Any, *arguments: Any) -> Array:
        return forward(static, False, *arguments)[0]

    def save(static: Any, *arguments: Any) -> tuple[Array, tuple[Any, ...]]:
        y, gate_up = forward(static, True, *arguments)
        return y, (*arguments, checkpoint_name(gate_up, MOE_GATE_UP))

    def gradients(static: Any, saved: tuple[Any, ...], dy: Array) -> tuple[Any, ...]:
        dx, dweight, dexperts = backward(static, *saved, dy)
        return dx, dweight, None, dexperts

    outputs.defvjp(save, gradients)
    function: Any = outputs
    return function
