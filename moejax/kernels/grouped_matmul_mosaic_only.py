"""Grouped products on Hopper with JAX's own Mosaic kernel for the gradient of the matrices too, to be compared.

Nobody has published how fast it is, and a like one of tokamax is slow, so it is used by name alone. It multiplies rows
by a mask: what nobody's rows hold must be a number there.

Shapes: R rows, G groups, D columns of the rows, F columns of the products.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels import grouped_matmul_mosaic
from moejax.kernels.grouped_matmul_tiles import jax_tile
from moejax.platform import gpu_generation

HOPPER = 9


def supports(rows: Any, matrices: Any, *sizes: Any) -> bool:
    """Whether the program is for Hopper, in 16 bits, and tiles divide both widths."""
    return gpu_generation() == HOPPER and grouped_matmul_mosaic.supports(rows, matrices, *sizes)


@sequential_vmap
def _matrices_gradient(x: Float[Array, "R D"], dy: Float[Array, "R F"], group_sizes: Int[Array, " G"]) -> Array:
    """[G, D, F]"""
    from jax.experimental.pallas.ops.gpu import transposed_ragged_dot_mgpu

    # Masked by a product, so that what is no number would spread.
    mine = (jnp.arange(x.shape[0]) < group_sizes.sum())[:, None]
    x, dy = (jnp.where(mine, rows, jnp.zeros((), rows.dtype)) for rows in (x, dy))
    tile = jax_tile(HOPPER, x.shape[0], group_sizes.shape[0], x.shape[1], dy.shape[1])
    assert tile is not None, "supports() has said no."
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


MOSAIC_ONLY = grouped_matmul_mosaic.MOSAIC._replace(matrices_gradient=_matrices_gradient)
