"""Compute grouped matmuls on Blackwell with tokamax's Mosaic kernel where tokamax's records list it as the fastest.

For other shapes, and for the gradient with respect to the matrices, our Triton kernels are used (in Pallas or
``jax_triton``). For this gradient, tokamax's Triton kernel returns nonzero values for empty groups: release 0.0.12
always runs a last iteration, which reads the preceding rows. Tokamax looks up sizes by exact shape and has slow
defaults, so this module specifies sizes. On Hopper, tokamax's kernel was slower than our Triton kernels in a training
step (docs/benchmarks.md) and is not used.
"""

from __future__ import annotations

from jax import Array
from jax.custom_batching import sequential_vmap

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.grouped_matmul.tiles import MosaicTile, in_16_bits_on, nearest
from moejax.kernels.private_api import tokamax_gpu
from moejax.kernels.table import Operand, triton_backend


def supports(rows: Operand, matrices: Operand, *sizes: Operand) -> bool:
    """Return whether the program uses 16 bits on Blackwell, and tiles divide both widths."""
    return in_16_bits_on(10, rows, matrices) and not any(width % 64 for width in matrices.shape[1:])


def _tile(part: str, rows: Array, matrices: Array) -> MosaicTile | None:
    """Return tile sizes for tokamax's Mosaic kernel, or None if the record prefers a Triton kernel."""
    tile = nearest(part, rows.shape[0], *matrices.shape).tile
    return tile if isinstance(tile, MosaicTile) else None


@sequential_vmap
def _forward(rows: Array, matrices: Array, group_sizes: Array) -> Array:
    tile = _tile("forward", rows, matrices)
    if tile is None:
        return triton_backend().forward(rows, matrices, group_sizes)
    return tokamax_gpu(rows, matrices, group_sizes, tile)


@sequential_vmap
def _rows_gradient(dy: Array, matrices: Array, group_sizes: Array) -> Array:
    tile = _tile("rows", dy, matrices)
    if tile is None:
        return triton_backend().rows_gradient(dy, matrices, group_sizes)
    return tokamax_gpu(dy, matrices.swapaxes(1, 2), group_sizes, tile)


def _matrices_gradient(rows: Array, dy: Array, group_sizes: Array) -> Array:
    return triton_backend().matrices_gradient(rows, dy, group_sizes)


TOKAMAX = GroupedMatmul(_forward, _rows_gradient, _matrices_gradient)
