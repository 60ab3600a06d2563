"""Define a layer's experts, stacked SwiGLU feed-forwards of equal shape, and the reference kernel."""

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
"""Function from the gate and up projections to the hidden rows."""


def swiglu(gate: Float[Array, "*rows hidden"], up: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
    """Return silu(gate) · up (Shazeer 2020)."""
    return jax.nn.silu(gate) * up


def clamped_swiglu(
    gate: Float[Array, "*rows hidden"], up: Float[Array, "*rows hidden"]
) -> Float[Array, "*rows hidden"]:
    """Return gpt-oss's activation, with inputs clamped at 7, a sigmoid with slope 1.702, and ``up`` + 1."""
    gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
    return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1.0)


ACTIVATIONS = {"swiglu": swiglu, "clamped_swiglu": clamped_swiglu}
"""Activations of experts, keyed by ``Architecture.activation``."""


@pytree
@dataclass(frozen=True)
class Experts:
    """Stacked weights: expert e maps a row x to activation(x·gate + gate_bias, x·up + up_bias)·down[e] + down_bias[e].
    Here gate and up are the two matrices of gate_up[e]; their biases are the two vectors of gate_up_bias[e]."""

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
    """Quantization of the experts' matmuls, one of ``moejax.kernels.quantization.QUANTIZATIONS``."""

    @property
    def num_experts(self) -> int:
        return self.down.shape[0]


def side_by_side(gate_up: Float[Array, "*stack 2 model hidden"]) -> Float[Array, "*stack model twice_hidden"]:
    """Return gate and up as one matrix, with the columns of up after the columns of gate.

    They are stored separately, so that sums and updates are as fast as for other matrices. On a TPU with tiled memory,
    [model, 2, hidden] is slower: XLA estimates 1.5 times the cycles for an Adam update. If the matrices were stored
    concatenated, a mesh that splits ``hidden`` would not split both.
    """
    *stack, _, model, hidden = gate_up.shape
    return gate_up.swapaxes(-3, -2).reshape(*stack, model, 2 * hidden)


def apart(matrix: Float[Array, "*stack model twice_hidden"]) -> Float[Array, "*stack 2 model hidden"]:
    """Invert ``side_by_side``; XLA removes consecutive inverses."""
    return matrix.reshape(*matrix.shape[:-1], 2, -1).swapaxes(-3, -2)


class Products(NamedTuple):
    """Operations that combine rows with their experts' arrays."""

    matmul: Callable[[Array, Array], Array]
    """Matmul of rows and matrices, summed in float32; grouped matmuls return the type of the rows."""
    vectors: Callable[[Array], Array]
    """Function that returns the experts' vectors per row, or in a shape that broadcasts to rows."""


def batched(quantization: str) -> Products:
    """Return operations for rows [..., rows, D] and arrays [..., D, F] whose leading axes match or broadcast."""
    in_full = partial(jnp.matmul, preferred_element_type=jnp.float32)
    return Products(
        matmul=in_full if quantization == "none" else partial(matmul, quantization),
        vectors=lambda vector: vector[..., None, :],
    )


def grouped(backend: GroupedMatmul, offsets: Int[Array, " experts_and_one"], rows: int) -> Products:
    """Return operations for rows [rows, D], sorted by expert with offsets ``offsets``, and arrays [experts, D, F]."""
    group_sizes = jnp.diff(offsets)
    # Rows after the last expert's rows are unused; their results are not read.
    expert = jnp.searchsorted(offsets[1:-1], jnp.arange(rows, dtype=offsets.dtype), side="right")

    return Products(
        matmul=lambda x, matrix: grouped_matmul(backend, x, matrix, group_sizes),
        vectors=lambda vector: vector[expert],
    )


def project_up(
    rows: Float[Array, "... rows model"], experts: Experts, products: Products | None = None
) -> Float[Array, "... rows twice_hidden"]:
    """Return gate and up projections, computed in one matmul. They have the type of the matmul or, with biases,
    float32. ``products`` defaults to ``batched``."""
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
    """Return weighted outputs in float32. Weights multiply the hidden rows, so their gradient does not need the
    outputs."""
    products = products or batched(experts.quantization)
    # Split before the conversion; otherwise XLA would materialize both halves in float32.
    gate, up = (half.astype(jnp.float32) for half in jnp.split(gate_up, 2, axis=-1))
    hidden = (weight[..., None] * experts.activation(gate, up)).astype(experts.down.dtype)
    y = products.matmul(hidden, experts.down).astype(jnp.float32)
    if experts.down_bias is None:
        return y
    return y + weight[..., None] * products.vectors(experts.down_bias).astype(jnp.float32)


LayoutWith = Callable[[int], Layout]
"""Function that returns the layout by expert with a given number of empty rows at the end."""


def reference(
    x: Float[Array, "tokens model"],
    combine_weight: Float[Array, " assignments"],
    layout_with: LayoutWith,
    experts: Experts,
    *,
    tokens_per_expert: int,
) -> Float[Array, "tokens model"]:
    """Return each token's weighted sum of its experts' outputs; other kernels fuse some of these steps.

    ``tokens_per_expert`` is the number of assignments per expert with balanced load.
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
    """Return a differentiable ``outputs(static, rows, weight, offsets, experts)`` from a forward and a backward
    function.

    ``forward(static, is_saving, rows, weight, offsets, experts)`` returns the weighted outputs and, if ``is_saving``,
    the gate and up projections. ``backward(static, ...)`` receives the same arrays, the projections and the outputs'
    gradient, and returns the gradients of rows, weights and experts. The activation is recomputed rather than saved.
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
