"""Compute experts with grouped matmuls, on accelerators that have kernels for them. Shapes are as in
``experts_blocks``."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from moejax.kernels.experts import Experts, LayoutWith, grouped, project_down, project_up, with_backward
from moejax.kernels.grouped_matmul import REFERENCE, GroupedMatmul
from moejax.kernels.permutation import permute, permute_weights, unpermute
from moejax.kernels.platform import platform
from moejax.kernels.quantization import in_8_bits
from moejax.kernels.quantization import reference as reference_in_8_bits
from moejax.kernels.table import Operand, select


def supports(x: Operand, combine_weight: Operand | None, layout_with: LayoutWith | None, experts: Experts) -> bool:
    """Return whether a kernel for grouped matmuls exists: on TPUs, and on NVIDIA GPUs (Ampere or newer) if a
    library for it is installed."""
    return platform() != "gpu" or not {REFERENCE, reference_in_8_bits} & set(_kernels(x, experts))


def _kernels(rows: Operand, experts: Experts) -> list[Any]:
    """Return the backend of grouped matmuls and, for quantized experts, the 8-bit kernel."""
    kernels = [select("grouped_matmul", rows, experts.down)]
    if experts.quantization != "none":
        kernels.append(select("grouped_matmul_8_bits", rows, experts.down, quantization=experts.quantization))
    return kernels


def experts_grouped_matmul(
    x: Float[Array, "tokens model"],
    combine_weight: Float[Array, " assignments"],
    layout_with: LayoutWith,
    experts: Experts,
    *,
    tokens_per_expert: int,
) -> Float[Array, "tokens model"]:
    """Return each token's weighted sum of its experts' outputs, computed by the platform's grouped matmuls."""
    layout = layout_with(0)
    rows, weight = permute(x, layout), permute_weights(combine_weight, layout)
    return unpermute(_outputs(_backend(rows, experts), rows, weight, layout.offsets, experts), layout)


def _backend(rows: Float[Array, "R D"], experts: Experts) -> GroupedMatmul:
    backend, *kernels = _kernels(rows, experts)
    return in_8_bits(backend, kernels[0], experts.quantization) if kernels else backend


def _forward(
    backend: GroupedMatmul,
    is_saving: bool,
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
) -> tuple[Array, ...]:
    products = grouped(backend, offsets, x.shape[0])
    gate_up = project_up(x, experts, products)
    y = project_down(gate_up, weight, experts, products)
    results = (y, gate_up) if is_saving else (y,)
    return tuple(result.astype(x.dtype) for result in results)


def _backward(
    backend: GroupedMatmul,
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
    gate_up: Float[Array, "R twice_F"],
    dy: Float[Array, "R D"],
) -> tuple[Float[Array, "R D"], Float[Array, " R"], Experts]:
    products = grouped(backend, offsets, x.shape[0])
    # Biases are also added to unused rows, which must not contribute gradients.
    is_valid = (jnp.arange(x.shape[0]) < offsets[-1])[:, None]
    dy = jnp.where(is_valid, dy, 0).astype(jnp.float32)
    if experts.gate_up_bias is not None:
        gate_up = gate_up.astype(jnp.float32)
    first, second = partial(project_up, products=products), partial(project_down, products=products)
    dgate_up, dweight, from_down = jax.vjp(second, gate_up, weight, experts)[1](dy)
    # Without the barrier, XLA would fuse this sum into the scatter on GPUs, with one thread per row.
    dweight = lax.optimization_barrier(dweight)
    dx, from_up = jax.vjp(first, x, experts)[1](jnp.where(is_valid, dgate_up, 0))
    return dx, dweight, jax.tree.map(jnp.add, from_down, from_up)


_outputs = with_backward(_forward, _backward)
