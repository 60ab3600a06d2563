"""Grouped products on a TPU, by JAX's own Pallas kernels (megablox), forwards and backwards.

``jax.lax.ragged_dot`` has a kernel there forwards, but its gradient of the matrices is a dense product of every row
with every group, masked; that of the rows first writes all matrices down transposed. These kernels do neither.

A kernel walks tiles of rows. One in which a group ends and the next begins is computed once for each, so tiles are no
more than a quarter of a balanced group where groups are large. None of it was timed on a TPU. Off TPU the
kernels are interpreted, for tests.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.platform import platform

LANES = 128
"""Tiles of what is not taken whole are multiples of this."""
ROWS = (512, 256, LANES)
"""Rows of a tile: the most that leave four to a group."""
WIDTH = 1024
"""Most columns of a tile, on either side of a product."""


def _tiles(rows: int, groups: int, into: int, out_of: int) -> tuple[int, int, int]:
    """Rows of a tile, and its columns on both sides of a product."""
    return row_tile(rows, groups), tile_width(into), tile_width(out_of)


def row_tile(rows: int, groups: int) -> int:
    """Rows of a tile."""
    return next((size for size in ROWS if 4 * size * groups <= rows), ROWS[-1])


def tile_width(size: int) -> int:
    """All columns, or parts as equal as multiples of ``LANES`` can be."""
    parts = -(-size // WIDTH)
    return size if parts == 1 else -(-size // (parts * LANES)) * LANES


def whole_tiles(rows: Array, height: int) -> Array:
    """Rows with zeros behind them, so that tiles divide them."""
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


# The kernels know no ``jax.vmap``; a population's members take turns.
MEGABLOX = GroupedMatmul(
    forward=sequential_vmap(partial(_rows_by_matrices, transposed=False)),
    rows_gradient=sequential_vmap(partial(_rows_by_matrices, transposed=True)),
    matrices_gradient=sequential_vmap(_rows_by_rows),
)
