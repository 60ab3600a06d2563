"""Define grouped matmuls, with one matrix per group of rows: the operation, the backend interface, and the reference.

``jax.lax.ragged_dot`` is not a backend, because it multiplies every row by the matrices of all groups: on a TPU in one
gradient, on other platforms always.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


class GroupedMatmul(NamedTuple):
    """A backend of grouped matmuls. Rows [R, D or F] are sorted by group; rows after the last group have arbitrary
    values."""

    forward: Callable[[Array, Array, Array], Array]
    """``(rows, matrices [groups, D, F], group_sizes) -> [R, F]``"""
    rows_gradient: Callable[[Array, Array, Array], Array]
    """``(dy [R, F], matrices, group_sizes) -> [R, D]``"""
    matrices_gradient: Callable[[Array, Array, Array], Array]
    """``(rows, dy, group_sizes) -> [groups, D, F]``"""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def grouped_matmul(
    backend: GroupedMatmul,
    rows: Float[Array, "R D"],
    matrices: Float[Array, "groups D F"],
    group_sizes: Int[Array, " groups"],
) -> Float[Array, "R F"]:
    """Multiply each group's rows by its matrix. Results and gradients are summed in float32 and returned in the type of
    the rows, because float32 outputs would move and store twice the bytes."""
    return backend.forward(rows, matrices, group_sizes)


def _save(
    backend: GroupedMatmul, rows: Array, matrices: Array, group_sizes: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    return backend.forward(rows, matrices, group_sizes), (rows, matrices, group_sizes)


def _gradients(backend: GroupedMatmul, saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    rows, matrices, group_sizes = saved
    dy = dy.astype(rows.dtype)
    drows = backend.rows_gradient(dy, matrices, group_sizes)
    return drows, backend.matrices_gradient(rows, dy, group_sizes).astype(matrices.dtype), None


grouped_matmul.defvjp(_save, _gradients)


def _groups(rows: int, group_sizes: Array) -> Array:
    """Return each row's group as a one-hot vector; zeros after the last group."""
    ends = jnp.cumsum(group_sizes)
    group = jnp.searchsorted(ends, jnp.arange(rows, dtype=ends.dtype), side="right")
    return jax.nn.one_hot(group, group_sizes.shape[0], dtype=jnp.float32)


def _without_others(rows: Array, groups: Array) -> Array:
    return jnp.where(groups.any(1)[:, None], rows, 0)


def _forward(rows: Array, matrices: Array, group_sizes: Array) -> Array:
    groups = _groups(rows.shape[0], group_sizes)
    wide = _without_others(rows, groups).astype(jnp.float32)
    return jnp.einsum("rg,rd,gdf->rf", groups, wide, matrices.astype(jnp.float32)).astype(rows.dtype)


def _rows_gradient(dy: Array, matrices: Array, group_sizes: Array) -> Array:
    return _forward(dy, matrices.swapaxes(1, 2), group_sizes)


def _matrices_gradient(rows: Array, dy: Array, group_sizes: Array) -> Array:
    groups = _groups(rows.shape[0], group_sizes)
    rows, dy = (_without_others(x, groups).astype(jnp.float32) for x in (rows, dy))
    return jnp.einsum("rg,rd,rf->gdf", groups, rows, dy)


REFERENCE = GroupedMatmul(_forward, _rows_gradient, _matrices_gradient)
