"""Compute grouped matmuls on a TPU, forward and backward, with JAX's Pallas kernels (megablox).

``jax.lax.ragged_dot`` has a forward kernel on TPUs. However, its gradient with respect to the matrices is a masked
dense matmul of every row with every group. Its gradient with respect to the rows first transposes all matrices in
memory. These kernels avoid both.

A kernel iterates over row tiles. A tile at the boundary of two groups is computed once for each group. Therefore, if
groups are large, tiles have at most a quarter of a balanced group's rows. The kernels have not been timed on a TPU. On
other platforms they are interpreted, for tests.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.platform import platform

LANES = 128
"""Divisor of tile sizes that do not cover a whole axis."""
ROWS = (512, 256, LANES)
"""Candidate tile heights; the largest that gives at least four tiles per balanced group is used."""
WIDTH = 1024
"""Maximum tile width of both sides of a matrix."""


def _tiles(rows: int, groups: int, into: int, out_of: int) -> tuple[int, int, int]:
    return row_tile(rows, groups), tile_width(into), tile_width(out_of)


def row_tile(rows: int, groups: int) -> int:
    """Return the number of rows per tile."""
    return next((size for size in ROWS if 4 * size * groups <= rows), ROWS[-1])


def tile_width(size: int) -> int:
    """Return the whole width, or a multiple of ``LANES`` that splits it as equally as possible."""
    parts = -(-size // WIDTH)
    return size if parts == 1 else -(-size // (parts * LANES)) * LANES


def whole_tiles(rows: Array, height: int) -> Array:
    """Pad rows with zeros to a multiple of the tile height."""
    return jnp.pad(rows, ((0, -rows.shape[0] % height), (0, 0)))


def _rows_by_matrices(rows: Array, matrices: Array, group_sizes: Array, transposed: bool) -> Array:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    groups, *sides = matrices.shape
    into, out_of = sides[::-1] if transposed else sides
    tiles = _tiles(rows.shape[0], groups, into, out_of)
    whole = whole_tiles(rows, tiles[0])
    with jax.numpy_dtype_promotion("standard"):
        product = gmm(
            whole,
            matrices,
            group_sizes,
            rows.dtype,
            tiles,
            transpose_rhs=transposed,
            interpret=platform() != "tpu",
        )
    return product[: rows.shape[0]]


def _rows_by_rows(x: Array, dy: Array, group_sizes: Array) -> Array:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    tiles = _tiles(x.shape[0], group_sizes.shape[0], x.shape[1], dy.shape[1])
    x, dy = whole_tiles(x, tiles[0]), whole_tiles(dy, tiles[0])
    with jax.numpy_dtype_promotion("standard"):
        return tgmm(x.swapaxes(0, 1), dy, group_sizes, x.dtype, tiles, interpret=platform() != "tpu")


# The kernels do not support ``jax.vmap``, so vmapped runs execute sequentially.
MEGABLOX = GroupedMatmul(
    forward=sequential_vmap(partial(_rows_by_matrices, transposed=False)),
    rows_gradient=sequential_vmap(partial(_rows_by_matrices, transposed=True)),
    matrices_gradient=sequential_vmap(_rows_by_rows),
)
