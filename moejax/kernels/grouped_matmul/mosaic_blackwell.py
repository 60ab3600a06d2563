"""Compute grouped matmuls on Blackwell with JAX's Mosaic kernel.

For the gradient with respect to the rows, the matrices are first transposed in memory. JAX has no Mosaic kernel for the
gradient with respect to the matrices on Blackwell, so Triton computes it. These kernels have not been timed.

Shapes: R rows, G groups, D columns of the rows, F columns of the results.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.grouped_matmul.tiles import in_16_bits_on, jax_tile
from moejax.kernels.table import Operand, triton_backend


def supports(rows: Operand, matrices: Operand, *sizes: Operand) -> bool:
    """Return whether the program uses 16 bits on Blackwell, and tiles divide both widths."""
    return in_16_bits_on(10, rows, matrices) and jax_tile(10, rows.shape[0], *matrices.shape) is not None


@sequential_vmap
def _forward(rows: Float[Array, "R D"], matrices: Float[Array, "G D F"], group_sizes: Int[Array, " G"]) -> Array:
    from jax.experimental.pallas.ops.gpu import blackwell_matmul_mgpu, blackwell_ragged_dot_mgpu

    tile = jax_tile(10, rows.shape[0], *matrices.shape)
    assert tile is not None, "supports() has returned False."
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
    with jax.numpy_dtype_promotion("standard"):
        return blackwell_ragged_dot_mgpu.ragged_dot_kernel(whole, matrices, group_sizes, config)[: rows.shape[0]]


def _rows_gradient(dy: Float[Array, "R F"], matrices: Float[Array, "G D F"], group_sizes: Int[Array, " G"]) -> Array:
    return _forward(dy, matrices.swapaxes(1, 2), group_sizes)


def _matrices_gradient(rows: Array, dy: Array, group_sizes: Array) -> Array:
    return triton_backend().matrices_gradient(rows, dy, group_sizes)


# The kernel has no rule for ``jax.vmap``, so vmapped runs execute sequentially.
MOSAIC_BLACKWELL = GroupedMatmul(_forward, _rows_gradient, _matrices_gradient)
