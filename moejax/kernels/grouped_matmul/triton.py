"""Compute grouped matmuls on NVIDIA GPUs (Ampere or newer) with our own Pallas kernels, compiled by Triton.

On Hopper these kernels compute all grouped matmuls, at 350 to 540 TFLOP/s on an H200 in bfloat16 (docs/benchmarks.md).
In training steps they are faster than the Mosaic kernels of JAX and tokamax. On Blackwell they are used for the
gradient with respect to the matrices. On all GPUs they are used for float32, and for widths that the other kernels do
not support. On other platforms they are interpreted, for tests.

Shapes: R rows, G groups, D columns of the rows, F columns of the results.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int, Shaped

from moejax.errors import UserError
from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.grouped_matmul.tiles import TritonTile, triton_tile
from moejax.kernels.platform import gpu_generation, platform
from moejax.kernels.quantization import quantize

F32 = jnp.float32

NUMBERS = 2**31
"""Number of elements above which signed 32-bit indices overflow. JAX uses such indices for arrays below 2^32 bytes, and
64 bits above. Indices of 8-bit arrays between 2^31 and 2^32 bytes therefore overflow."""


def supports(*arguments: Any, quantization: str = "none") -> bool:
    """Return whether Triton supports the program's GPUs: Ampere or later; for float8, Hopper or later."""
    return gpu_generation() >= (9 if quantization == "fp8" else 8)


class RowTiles(NamedTuple):
    """Row tiles, each within one group: the maximum possible number, with empty tiles at the end."""

    group: Int[Array, " tiles"]
    start: Int[Array, " tiles"]
    first: Int[Array, " tiles"]
    """First row of the group in the tile; it is after ``start`` if the tile was aligned to start before the group."""
    stop: Int[Array, " tiles"]
    """End of the group's rows (exclusive)."""


def row_tiles(rows: int, group_sizes: Int[Array, " G"], height: int, multiple: int = 1) -> RowTiles:
    """Return row tiles of this height; a group's first tile starts at a multiple of ``multiple``."""
    groups = group_sizes.shape[0]
    ends = jnp.cumsum(group_sizes)
    firsts = ends - group_sizes
    starts = firsts // multiple * multiple
    counts = jnp.where(group_sizes > 0, -((ends - starts) // -height), 0)
    last = jnp.cumsum(counts)
    tile = jnp.arange((rows + (multiple - 1) * groups) // height + groups, dtype=last.dtype)
    group = jnp.minimum(jnp.searchsorted(last, tile, side="right", method="compare_all"), groups - 1).astype(jnp.int32)
    start = starts[group] + (tile - (last - counts)[group]) * height
    first = jnp.maximum(start, firsts[group])
    return RowTiles(group, *(place.astype(jnp.int32) for place in (start, first, ends[group])))


def _part(start: Any, length: int, whole: int) -> tuple[Any, Array | None]:
    """Return a slice of an axis and its validity mask; the mask is None if the whole slice exists."""
    from jax.experimental import pallas as pl

    exists = None if whole % length == 0 else start + jnp.arange(length, dtype=jnp.int32) < whole
    return pl.ds(start, length), exists


def _mask(shape: tuple[int, ...], rows: Array | None, columns: Array | None) -> Array | None:
    along_rows = None if rows is None else rows[:, None] if len(shape) > 1 else rows
    masks = [mask for mask in (along_rows, columns) if mask is not None]
    return jnp.broadcast_to(masks[0] if len(masks) == 1 else masks[0] & masks[1], shape) if masks else None


def _load(ref: Any, rows: Array | None, columns: Array | None) -> Array:
    from jax.experimental.pallas import triton

    mask = _mask(ref.shape, rows, columns)
    return triton.load(ref) if mask is None else triton.load(ref, mask=mask, other=jnp.zeros((), ref.dtype))


def _store(ref: Any, values: Array, rows: Array | None, columns: Array | None) -> None:
    from jax.experimental.pallas import triton

    triton.store(ref, values.astype(ref.dtype), mask=_mask(ref.shape, rows, columns))


def _product(a: Array, b: Array) -> Array:
    # This is at least as exact as XLA's own matmuls: float32 is not rounded to 10 bits.
    precision = lax.Precision.HIGHEST if a.dtype == F32 else None
    return jnp.dot(a, b, precision=precision, preferred_element_type=_summed_in(a.dtype))


def _summed_in(dtype: Any) -> Any:
    return jnp.int32 if jnp.issubdtype(dtype, jnp.integer) else F32


def _rows_by_matrices(
    rows: Shaped[Array, "R D"],
    matrices: Shaped[Array, "G _ _"],
    group_sizes: Int[Array, " G"],
    *scales: Float[Array, ...],
    transposed: bool,
    dtype: Any = None,
) -> Float[Array, "R F"]:
    """Multiply rows by matrices [G, D, F], or [G, F, D] if ``transposed``. The result has ``dtype`` or, by default, the
    rows' type.

    For 8-bit numbers, ``scales`` are the scales of rows [R] and of matrix columns [G, F]; otherwise there are none.
    """
    from jax.experimental import pallas as pl

    (count, into), out_of = rows.shape, matrices.shape[1 if transposed else 2]
    part = "rows" if transposed else "forward"
    groups, *sides = matrices.shape
    tile = triton_tile(gpu_generation(), part, count, groups, sides[0], sides[1], rows.dtype.itemsize)
    tiles = row_tiles(count, group_sizes, tile.rows)

    def kernel(rows: Any, matrices: Any, group: Any, start: Any, stop: Any, *scales_and_out: Any) -> None:
        *scales, out = scales_and_out
        column, place = pl.program_id(0), pl.program_id(1)
        matrix, first, end = group[place], start[place], stop[place]

        @pl.when(first < end)
        def _() -> None:
            # A tile that would extend beyond the last row starts earlier. It also computes rows of other groups but
            # does not write them, so the loop needs no mask.
            top = jnp.minimum(first, max(count - tile.rows, 0))
            are_rows = None if count >= tile.rows else jnp.arange(tile.rows, dtype=jnp.int32) < count
            columns, are_columns = _part(column * tile.columns, tile.columns, out_of)

            def add(step: Any, total: Array) -> Array:
                inner, are_inner = _part(step * tile.inner, tile.inner, into)
                a = _load(rows.at[pl.ds(top, tile.rows), inner], are_rows, are_inner)
                if transposed:
                    b = _load(matrices.at[matrix, columns, inner], are_columns, are_inner).T
                else:
                    b = _load(matrices.at[matrix, inner, columns], are_inner, are_columns)
                return total + _product(a, b)

            none = jnp.zeros((tile.rows, tile.columns), _summed_in(rows.dtype))
            total = lax.fori_loop(0, pl.cdiv(into, tile.inner), add, none)
            if scales:
                of_rows = _load(scales[0].at[pl.ds(top, tile.rows)], are_rows, None)
                of_columns = _load(scales[1].at[matrix, columns], None, are_columns)
                total = total.astype(F32) * of_rows[:, None] * of_columns[None, :]
            row = top + jnp.arange(tile.rows, dtype=jnp.int32)
            _store(out.at[pl.ds(top, tile.rows), columns], total, (first <= row) & (row < end), are_columns)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((count, out_of), dtype or rows.dtype),
        grid=(pl.cdiv(out_of, tile.columns), tiles.group.shape[0]),
        compiler_params=_compiler_params(tile),
        interpret=platform() != "gpu",
        name="grouped_8_bits" if scales else "grouped_rows" if transposed else "grouped_forward",
    )(rows, matrices, tiles.group, tiles.start, tiles.stop, *scales)


def in_8_bits(
    rows: Float[Array, "R D"], matrices: Float[Array, "G F D"], group_sizes: Int[Array, " G"], quantization: str
) -> Float[Array, "R F"]:
    """Compute ``moejax.kernels.quantization.reference``; the scales are applied before a sum is written.

    Raises:
      UserError: an array has a size for which JAX computes wrong indices.
    """
    for name, array, remedy in (("rows", rows, "recipe.microbatches"), ("matrices", matrices, "mesh.expert")):
        if platform() == "gpu" and NUMBERS < array.size <= 2 * NUMBERS:
            raise UserError(
                f"The experts' {name} have the shape {' by '.join(map(str, array.shape))} on a device. In 8 bits, JAX "
                f"does not support between {NUMBERS:,} and {2 * NUMBERS:,} elements; raise {remedy}, or set "
                f"runtime.matmul_quantization to 'none'."
            )
    x, w = (quantize(one, -1, quantization) for one in (rows, matrices))
    product = partial(_rows_by_matrices, transposed=True, dtype=rows.dtype)
    return sequential_vmap(product)(x.values, w.values, group_sizes, x.scale[:, 0], w.scale[..., 0])


def _rows_by_rows(x: Float[Array, "R D"], dy: Float[Array, "R F"], group_sizes: Int[Array, " G"]) -> Array:
    from jax.experimental import pallas as pl

    (into, out_of), groups = (x.shape[1], dy.shape[1]), group_sizes.shape[0]
    tile = triton_tile(gpu_generation(), "matrices", x.shape[0], groups, into, out_of, x.dtype.itemsize)
    stops = jnp.cumsum(group_sizes).astype(jnp.int32)
    starts = stops - group_sizes.astype(jnp.int32)

    def kernel(x: Any, dy: Any, starts: Any, stops: Any, out: Any) -> None:
        matrix = pl.program_id(2)
        first, end = starts[matrix], stops[matrix]
        height, are_rows = _part(pl.program_id(1) * tile.rows, tile.rows, into)
        columns, are_columns = _part(pl.program_id(0) * tile.columns, tile.columns, out_of)

        def add(step: Any, total: Array, is_last: bool = False) -> Array:
            start = first + step * tile.inner
            mine = start + jnp.arange(tile.inner, dtype=jnp.int32) < end if is_last else None
            a = _load(x.at[pl.ds(start, tile.inner), height], mine, are_rows)
            b = _load(dy.at[pl.ds(start, tile.inner), columns], mine, are_columns)
            return total + _product(a.T, b)

        # All iterations except the last are complete and load without a mask. An empty group has one empty iteration.
        last = jnp.maximum(pl.cdiv(end - first, jnp.int32(tile.inner)) - 1, 0)
        total = lax.fori_loop(0, last, add, jnp.zeros((tile.rows, tile.columns), F32))
        total = add(last, total, is_last=True)
        _store(out.at[matrix, height, columns], total, are_rows, are_columns)

    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((groups, into, out_of), x.dtype),
        grid=(pl.cdiv(out_of, tile.columns), pl.cdiv(into, tile.rows), groups),
        compiler_params=_compiler_params(tile),
        interpret=platform() != "gpu",
        name="grouped_matrices",
    )(x, dy, starts, stops)


def _compiler_params(tile: TritonTile) -> Any:
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages)


# The kernels do not support ``jax.vmap`` of group sizes, so vmapped runs execute sequentially.
TRITON = GroupedMatmul(
    forward=sequential_vmap(partial(_rows_by_matrices, transposed=False)),
    rows_gradient=sequential_vmap(partial(_rows_by_matrices, transposed=True)),
    matrices_gradient=sequential_vmap(_rows_by_rows),
)
