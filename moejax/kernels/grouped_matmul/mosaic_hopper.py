"""Compute grouped matmuls on Hopper with JAX's Mosaic kernels.

On an H200, a training step took 431 ms with these kernels and 413 ms with our Triton kernels (docs/benchmarks.md). They
are therefore used only if JAX has no Triton backend for Pallas.

Shapes: R rows, G groups, D columns of the rows, F columns of the results.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.grouped_matmul.tiles import JaxTile, in_16_bits_on, jax_tile
from moejax.kernels.table import Operand


def supports(rows: Operand, matrices: Operand, *sizes: Operand) -> bool:
    """Return whether the program uses 16 bits on Hopper, and tiles divide both widths."""
    return in_16_bits_on(9, rows, matrices) and jax_tile(9, rows.shape[0], *matrices.shape) is not None


def _tile(rows: int, groups: int, into: int, out_of: int) -> JaxTile:
    tile = jax_tile(9, rows, groups, into, out_of)
    assert tile is not None, "supports() has returned False."
    return tile


def _rows_by_matrices(
    rows: Float[Array, "R _"], matrices: Float[Array, "G D F"], group_sizes: Int[Array, " G"], transposed: bool
) -> Array:
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

    groups, *sides = matrices.shape
    into, out_of = sides[::-1] if transposed else sides
    tile = _tile(rows.shape[0], groups, into, out_of)
    with jax.numpy_dtype_promotion("standard"):
        return ragged_dot_mgpu.ragged_dot(
            rows,
            matrices,
            group_sizes=group_sizes,
            block_m=tile.rows,
            block_n=tile.columns,
            block_k=tile.inner,
            max_concurrent_steps=tile.stages,
            grid_block_n=tile.width,
            transpose_rhs=transposed,
        )


def _matrices_gradient(x: Float[Array, "R D"], dy: Float[Array, "R F"], group_sizes: Int[Array, " G"]) -> Array:
    from jax.experimental.pallas.ops.gpu import transposed_ragged_dot_mgpu

    # The kernel masks rows of other groups by multiplying them by zero, which does not remove NaN.
    mine = (jnp.arange(x.shape[0]) < group_sizes.sum())[:, None]
    x, dy = (jnp.where(mine, rows, jnp.zeros((), rows.dtype)) for rows in (x, dy))
    tile = _tile(x.shape[0], group_sizes.shape[0], x.shape[1], dy.shape[1])
    with jax.numpy_dtype_promotion("standard"):
        return transposed_ragged_dot_mgpu.transposed_ragged_dot(
            x,
            dy,
            group_sizes=group_sizes,
            block_m=tile.columns,
            block_n=tile.columns,
            block_k=tile.inner,
            max_concurrent_steps=4,
            grid_block_n=1,
        )


# The kernels have no rule for ``jax.vmap``, so vmapped runs execute sequentially.
MOSAIC_HOPPER = GroupedMatmul(
    forward=sequential_vmap(partial(_rows_by_matrices, transposed=False)),
    rows_gradient=sequential_vmap(partial(_rows_by_matrices, transposed=True)),
    matrices_gradient=sequential_vmap(_matrices_gradient),
)
