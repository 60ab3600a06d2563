"""Implement the grouped matmuls of ``grouped_matmul.triton`` in Triton's own language, called through ``jax_triton``.

JAX deprecated Pallas's Triton backend in 0.11 and will remove it. Without it, these kernels are used on Ampere, for the
gradient with respect to the matrices on Blackwell, for float32 on any NVIDIA GPU, and for widths that no Mosaic tile
divides. They use the Pallas kernels' tile sizes. They have not run on a GPU; tests interpret and compile them.

Shapes: R rows, G groups, D columns of the rows, F columns of the results.
"""
# pyright: reportInvalidTypeForm=false

from __future__ import annotations

import importlib
import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int, Shaped

from moejax.kernels.grouped_matmul import GroupedMatmul
from moejax.kernels.grouped_matmul.tiles import TritonTile, triton_tile
from moejax.kernels.grouped_matmul.triton import row_tiles, supports
from moejax.kernels.platform import gpu_generation
from moejax.kernels.quantization import quantize

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

__all__ = ["JAX_TRITON", "in_8_bits", "supports"]


@triton.jit
def rows_by_matrices_kernel(
    rows,
    matrices,
    group,
    start,
    stop,
    row_scale,
    column_scale,
    out,
    COUNT: tl.constexpr,
    INTO: tl.constexpr,
    OUT_OF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    SCALED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    place = tl.program_id(1)
    first, end = tl.load(start + place), tl.load(stop + place)
    if first < end:
        matrix = tl.load(group + place).to(tl.int64)
        # A tile that would extend beyond the last row starts earlier. It also computes rows of other groups but does
        # not write them, so the loop needs no mask.
        row = tl.minimum(first, max(COUNT - ROWS, 0)) + tl.arange(0, ROWS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        a = rows + row.to(tl.int64)[:, None] * INTO
        b = matrices + matrix * (INTO * OUT_OF)
        total = tl.zeros((ROWS, COLUMNS), tl.int32 if SCALED and rows.dtype.element_ty == tl.int8 else tl.float32)
        for step in range(0, INTO, INNER):
            inner = step + tl.arange(0, INNER)
            if TRANSPOSED:
                of_b = b + column[None, :] * INTO + inner[:, None]
            else:
                of_b = b + inner[:, None] * OUT_OF + column[None, :]
            if WHOLE:
                left, right = tl.load(a + inner[None, :]), tl.load(of_b)
            else:
                is_inner = inner < INTO
                left = tl.load(a + inner[None, :], mask=(row < COUNT)[:, None] & is_inner[None, :], other=0)
                right = tl.load(of_b, mask=is_inner[:, None] & (column < OUT_OF)[None, :], other=0)
            total = tl.dot(left, right, total, input_precision="ieee", out_dtype=total.dtype)
        is_mine, is_column = (first <= row) & (row < end), column < OUT_OF
        if SCALED:
            by_row = tl.load(row_scale + row, mask=is_mine, other=0)
            by_column = tl.load(column_scale + matrix * OUT_OF + column, mask=is_column, other=0)
            total = total.to(tl.float32) * by_row[:, None] * by_column[None, :]
        written = out + row.to(tl.int64)[:, None] * OUT_OF + column[None, :]
        tl.store(written, total.to(out.dtype.element_ty), mask=is_mine[:, None] & is_column[None, :])


@triton.jit
def rows_by_rows_kernel(
    x,
    dy,
    starts,
    stops,
    out,
    INTO: tl.constexpr,
    OUT_OF: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    matrix = tl.program_id(2).to(tl.int64)
    first, end = tl.load(starts + matrix), tl.load(stops + matrix)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = row < INTO, column < OUT_OF
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    # All steps except the last are complete. They load without a mask if tiles divide the widths.
    whole = first + (end - first) // INNER * INNER
    for step in range(first, whole, INNER):
        inner = (step + tl.arange(0, INNER)).to(tl.int64)
        if INTO % ROWS == 0:
            left = tl.load(x + inner[None, :] * INTO + row[:, None])
        else:
            left = tl.load(x + inner[None, :] * INTO + row[:, None], mask=is_row[:, None], other=0)
        if OUT_OF % COLUMNS == 0:
            right = tl.load(dy + inner[:, None] * OUT_OF + column[None, :])
        else:
            right = tl.load(dy + inner[:, None] * OUT_OF + column[None, :], mask=is_column[None, :], other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    if whole < end:
        inner = (whole + tl.arange(0, INNER)).to(tl.int64)
        left = tl.load(x + inner[None, :] * INTO + row[:, None], mask=is_row[:, None] & (inner < end)[None, :], other=0)
        masked = (inner < end)[:, None] & is_column[None, :]
        right = tl.load(dy + inner[:, None] * OUT_OF + column[None, :], mask=masked, other=0)
        total = tl.dot(left, right, total, input_precision="ieee")
    written = out + matrix * (INTO * OUT_OF) + row[:, None] * OUT_OF + column[None, :]
    tl.store(written, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def _call(
    kernel: Any, out: jax.ShapeDtypeStruct, tile: TritonTile, grid: tuple[int, ...], *arrays: Array, **sizes: Any
):
    call = importlib.import_module("jax_triton").triton_call
    # jax-triton 0.4 renamed the argument.
    result = "out_type" if "out_type" in inspect.signature(call).parameters else "out_shape"
    return call(
        *arrays,
        kernel=kernel,
        grid=grid,
        num_warps=tile.warps,
        num_stages=tile.stages,
        # A local GPU reports its capability; a compile-only target cannot be queried.
        compute_capability=None if jax.default_backend() == "gpu" else 10 * gpu_generation(),
        **{result: out},
        **sizes,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        INNER=tile.inner,
    )


def _rows_by_matrices(
    rows: Shaped[Array, "R _"],
    matrices: Shaped[Array, "G _ _"],
    group_sizes: Int[Array, " G"],
    *scales: Float[Array, ...],
    transposed: bool,
    dtype: Any = None,
) -> Float[Array, "R _"]:
    """Multiply rows by matrices [G, D, F], or [G, F, D] if ``transposed``. The result has ``dtype`` or the rows' type.

    For 8-bit numbers, ``scales`` are the scales of rows [R] and of matrix columns [G, F]; otherwise there are none.
    """
    (count, into), out_of = rows.shape, matrices.shape[1 if transposed else 2]
    part = "rows" if transposed else "forward"
    groups, *sides = matrices.shape
    tile = triton_tile(gpu_generation(), part, count, groups, sides[0], sides[1], rows.dtype.itemsize)
    tiles = row_tiles(count, group_sizes, tile.rows)
    return _call(
        rows_by_matrices_kernel,
        jax.ShapeDtypeStruct((count, out_of), dtype or rows.dtype),
        tile,
        (-(-out_of // tile.columns), tiles.group.shape[0]),
        *(rows, matrices, tiles.group, tiles.start, tiles.stop),
        # Without scales, the kernel does not read these two arguments.
        *(scales or (tiles.stop, tiles.stop)),
        COUNT=count,
        INTO=into,
        OUT_OF=out_of,
        TRANSPOSED=transposed,
        SCALED=bool(scales),
        WHOLE=count >= tile.rows and into % tile.inner == 0 and out_of % tile.columns == 0,
    )


def _rows_by_rows(x: Float[Array, "R D"], dy: Float[Array, "R F"], group_sizes: Int[Array, " G"]) -> Array:
    (count, into), out_of, groups = x.shape, dy.shape[1], group_sizes.shape[0]
    tile = triton_tile(gpu_generation(), "matrices", count, groups, into, out_of, x.dtype.itemsize)
    stops = jnp.cumsum(group_sizes).astype(jnp.int32)
    return _call(
        rows_by_rows_kernel,
        jax.ShapeDtypeStruct((groups, into, out_of), x.dtype),
        tile,
        (-(-out_of // tile.columns), -(-into // tile.rows), groups),
        *(x, dy, stops - group_sizes.astype(jnp.int32), stops),
        INTO=into,
        OUT_OF=out_of,
    )


def in_8_bits(
    rows: Float[Array, "R D"], matrices: Float[Array, "G F D"], group_sizes: Int[Array, " G"], quantization: str
) -> Float[Array, "R F"]:
    """Compute ``moejax.kernels.quantization.reference``; the scales are applied before a sum is written."""
    x, w = (quantize(one, -1, quantization) for one in (rows, matrices))
    product = partial(_rows_by_matrices, transposed=True, dtype=rows.dtype)
    return sequential_vmap(product)(x.values, w.values, group_sizes, x.scale[:, 0], w.scale[..., 0])


# ``triton_call`` has no rule for ``jax.vmap``, so vmapped runs execute sequentially.
JAX_TRITON = GroupedMatmul(
    forward=sequential_vmap(partial(_rows_by_matrices, transposed=False)),
    rows_gradient=sequential_vmap(partial(_rows_by_matrices, transposed=True)),
    matrices_gradient=sequential_vmap(_rows_by_rows),
)
