"""Grouped products on Hopper and Blackwell, by the Mosaic kernels that JAX brings along.

On Hopper a kernel reads the matrices transposed for the gradient of the rows; on Blackwell they are first written down
so. The gradient of the matrices is our Triton kernel's (``grouped_matmul_mosaic_only`` has JAX's, for Hopper alone).
None of these was timed by us.

Shapes: R rows, G groups, D columns of the rows, F columns of the products.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.grouped_matmul_tiles import JaxTile, jax_tile
from moejax.kernels.grouped_matmul_triton import TRITON
from moejax.platform import gpu_generation


def supports(rows: Any, matrices: Any, *sizes: Any) -> bool:
    """Whether the program is for Hopper or Blackwell, in 16 bits, and tiles divide both widths."""
    if rows.dtype not in (jnp.bfloat16, jnp.float16) or rows.dtype != matrices.dtype:
        return False
    return jax_tile(gpu_generation(), rows.shape[0], *matrices.shape) is not None


def _tile(rows: int, groups: int, into: int, out_of: int) -> JaxTile:
    tile = jax_tile(gpu_generation(), rows, groups, into, out_of)
    assert tile is not None, "supports() has said no."
    return tile


def _on_hopper(rows: Array, matrices: Array, group_sizes: Array, transposed: bool) -> Array:
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu

    groups, *sides = matrices.shape
    into, out_of = sides[::-1] if transposed else sides
    tile = _tile(rows.shape[0], groups, into, out_of)
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


def _on_blackwell(rows: Array, matrices: Array, group_sizes: Array) -> Array:
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu, blackwell_ragged_dot_mgpu

    tile = _tile(rows.shape[0], *matrices.shape)
    # Two multiprocessors share a tile of twice the rows and columns.
    whole = jnp.pad(rows, ((0, -rows.shape[0] % (2 * tile.rows)), (0, 0)))
    config = blackwell_ragged_dot_mgpu.TuningConfig(
        tile_m=tile.rows,
        tile_n=tile.columns,
        tile_k=tile.inner,
        max_concurrent_steps=tile.stages,
        collective=True,
        grid_tile_width=tile.width,
        grid_minor_dim=blackwell_matmul_mgpu.MatmulDimension.M,
    )
    return blackwell_ragged_dot_mgpu.ragged_dot_kernel(whole, matrices, group_sizes, config)[: rows.shape[0]]


@sequential_vmap
def _forward(rows: Float[Array, "R D"], matrices: Float[Array, "G D F"], group_sizes: Int[Array, " G"]) -> Array:
    with jax.numpy_dtype_promotion("standard"):
        if gpu_generation() >= 10:
            return _on_blackwell(rows, matrices, group_sizes)
        return _on_hopper(rows, matrices, group_sizes, transposed=False)


@sequential_vmap
def _rows_gradient(dy: Float[Array, "R F"], matrices: Float[Array, "G D F"], group_sizes: Int[Array, " G"]) -> Array:
    with jax.numpy_dtype_promotion("standard"):
        if gpu_generation() >= 10:
            return _on_blackwell(dy, matrices.swapaxes(1, 2), group_sizes)
        return _on_hopper(dy, matrices, group_sizes, transposed=True)


# The kernels know no ``jax.vmap``; a population's members take turns.
MOSAIC = GroupedMatmul(_forward, _rows_gradient, TRITON.matrices_gradient)
