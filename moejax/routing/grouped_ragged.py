"""Grouped experts as ragged products, for accelerators with a kernel for them. Shapes are those of grouped_blocks.

On a TPU these are those of ``grouped_kernel``, on NVIDIA GPUs tokamax's. ``jax.lax.ragged_dot`` computes every expert
for every row: on a TPU in one of its gradients, elsewhere everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from moejax.routing.experts import Experts, Meeting, project_down, project_up

RaggedDot = Callable[..., Array]
"""``ragged_dot(rows, matrices, group_sizes, preferred_element_type=…)``, as ``jax.lax.ragged_dot``."""


def _meeting(ragged_dot: RaggedDot, offsets: Array, rows: int) -> Meeting:
    group_sizes = jnp.diff(offsets)
    # Rows behind the last expert's are nobody's: their results are not read.
    expert = jnp.searchsorted(offsets[1:-1], jnp.arange(rows, dtype=offsets.dtype), side="right")
    return Meeting(
        # Sums are made in float32 and come out in the type of the rows, and so do their gradients: products of float32
        # with bfloat16 would move and hold twice the bytes.
        product=lambda x, matrix: ragged_dot(x, matrix, group_sizes, preferred_element_type=x.dtype).astype(
            jnp.float32
        ),
        of_rows=lambda vector: vector[expert],
    )


def forward(
    keep: bool,
    ragged_dot: RaggedDot,
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
) -> tuple[Array, ...]:
    """Weighted outputs [R, D] and, for the backward pass if ``keep``, the gate and up projections [R, F]."""
    meeting = _meeting(ragged_dot, offsets, x.shape[0])
    gate, up = project_up(x, experts, meeting)
    y = project_down(gate, up, weight, experts, meeting)
    results = (y, gate, up) if keep else (y,)
    return tuple(result.astype(x.dtype) for result in results)


def backward(
    ragged_dot: RaggedDot,
    x: Float[Array, "R D"],
    weight: Float[Array, " R"],
    offsets: Int[Array, " experts_and_one"],
    experts: Experts,
    gate: Float[Array, "R F"],
    up: Float[Array, "R F"],
    dy: Float[Array, "R D"],
) -> tuple[Float[Array, "R D"], Float[Array, " R"], Experts]:
    """Gradients of the rows, of their weights and of the experts."""
    meeting = _meeting(ragged_dot, offsets, x.shape[0])
    # Biases reach nobody's rows too, so these may bring no gradient.
    is_served = (jnp.arange(x.shape[0]) < offsets[-1])[:, None]
    dy = jnp.where(is_served, dy, 0).astype(jnp.float32)
    gate, up = gate.astype(jnp.float32), up.astype(jnp.float32)
    first, second = partial(project_up, meeting=meeting), partial(project_down, meeting=meeting)
    dgate, dup, dweight, from_down = jax.vjp(second, gate, up, weight, experts)[1](dy)
    dgate, dup = (jnp.where(is_served, rows, 0) for rows in (dgate, dup))
    dx, from_up = jax.vjp(first, x, experts)[1]((dgate, dup))
    return dx, dweight, jax.tree.map(jnp.add, from_down, from_up)
