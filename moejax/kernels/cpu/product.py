"""Compute matmuls of matrices that are small or used only once, such as expert matrices.

Only the second factor is copied, one panel at a time, so a matmul of few rows costs little more than its arithmetic.
Meanwhile the next data is prefetched from memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any, no_type_check

import numpy as np
from llvmlite import binding
from numba import njit, types

from moejax.kernels.cpu.compiled import compiled
from moejax.kernels.cpu.memory import get, put, scratch
from moejax.kernels.cpu.tile import (
    DEPTH,
    LANES,
    LINE,
    PANEL,
    TILE,
    VECTORS,
    copy_vector,
    fetch,
    fetched,
    tile,
    transpose_square,
)

APART = 16
"""Padding between rows of working memory, in numbers. Without it, rows at power-of-two distances would map to the same
cache lines."""
FEW = 3
"""Number of vertically adjacent tiles up to which no panel is prefetched, because their arithmetic is faster than
memory."""
ROOM = 1 << 16
"""Maximum size of a matrix that is prefetched whole during the previous matmul: a quarter of a 1 MiB cache. For larger
matrices, the next panel is prefetched during the use of a panel."""

_panel_there, _corner_there = scratch(DEPTH * PANEL), scratch(TILE * PANEL)


@njit
@no_type_check
def _copy_panel(b, stride, is_transposed, depth, width, panel) -> None:
    """Copy a panel with ``depth`` rows and ``width`` columns, stored as [width, depth] if transposed; pad its last
    vector with zeros."""
    full, square = width // LANES * LANES, depth // LANES * LANES
    if is_transposed:
        for j in range(0, full, LANES):
            for k in range(0, square, LANES):
                transpose_square(b + 4 * (j * stride + k), stride, panel + 4 * (k * PANEL + j), PANEL)
            for k in range(square, depth):
                for i in range(j, j + LANES):
                    put(panel + 4 * (k * PANEL + i), get(b + 4 * (i * stride + k)))
    else:
        for k in range(depth):
            for j in range(0, full, LANES):
                copy_vector(b + 4 * (k * stride + j), panel + 4 * (k * PANEL + j))
    if full < width:
        down, along = (1, stride) if is_transposed else (stride, 1)
        for k in range(depth):
            for j in range(full, full + LANES):
                value = get(b + 4 * (k * down + j * along)) if j < width else np.float32(0)
                put(panel + 4 * (k * PANEL + j), value)


@njit(inline="always")
@no_type_check
def fetch_row(address: int, length: int) -> None:
    """Prefetch a row of ``length`` numbers from memory without waiting."""
    for number in range(0, length, LINE):
        fetch(address + 4 * number)


@njit
@no_type_check
def _fetch_panel(b, stride, is_transposed, depth, width, part, parts) -> None:
    rows, length = (width, depth) if is_transposed else (depth, width)
    for row in range(part * rows // parts, (part + 1) * rows // parts):
        fetch_row(b + 4 * row * stride, length)


@njit
@no_type_check
def _corner_tile(height, vectors, width, a_transposed, a, a_stride, panel, depth, c, c_stride, add) -> None:
    """Compute a tile that is wider than the remaining columns of the result."""
    corner = _corner_there()
    tile(height, vectors, a_transposed, a, a_stride, panel, depth, corner, PANEL, 0, panel)
    for i in range(height):
        for j in range(width):
            value, place = get(corner + 4 * (i * PANEL + j)), c + 4 * (i * c_stride + j)
            put(place, value + get(place) if add else value)


@partial(compiled, types.void(*[types.intp] * 14))
@no_type_check
def _product(
    m, n, k, a, a_stride, a_transposed, b, b_stride, b_transposed, c, c_stride, add, ahead, numbers_ahead
) -> None:
    """Compute ``multiply_before`` for addresses; booleans are integers, 0 or 1."""
    panel = _panel_there()
    end = ahead + (4 * numbers_ahead if numbers_ahead <= ROOM else 0)
    tiles = (m + TILE - 1) // TILE
    by_panel = k * n > ROOM and tiles > FEW
    if k == 0 and not add:
        for i in range(m):
            for j in range(n):
                put(c + 4 * (i * c_stride + j), np.float32(0))
    for deep in range(0, k, DEPTH):
        depth = min(DEPTH, k - deep)
        for wide in range(0, n, PANEL):
            width, left = min(PANEL, n - wide), min(PANEL, n - wide - PANEL)
            vectors = 1 if width <= LANES else VECTORS
            source = b + 4 * (wide * b_stride + deep if b_transposed else deep * b_stride + wide)
            next_panel = source + 4 * PANEL * (b_stride if b_transposed else 1)
            _copy_panel(source, b_stride, b_transposed, depth, width, panel)
            row = 0
            while row < m:
                height = TILE if m - row >= TILE else 8
                while height > m - row:
                    height //= 2
                rows = a + 4 * (deep * a_stride + row if a_transposed else row * a_stride + deep)
                place, adds = c + 4 * (row * c_stride + wide), 1 if deep > 0 else add
                if width == vectors * LANES:
                    target = ahead if ahead < end else panel
                    tile(height, vectors, a_transposed, rows, a_stride, panel, depth, place, c_stride, adds, target)
                    ahead += 4 * fetched(depth)
                else:
                    _corner_tile(
                        height, vectors, width, a_transposed, rows, a_stride, panel, depth, place, c_stride, adds
                    )
                if by_panel and left > 0 and height == TILE:
                    _fetch_panel(next_panel, b_stride, b_transposed, depth, left, row // TILE, tiles)
                row += height


binding.add_symbol("moejax_product", _product.address)
_product_there = types.ExternalFunction("moejax_product", types.void(*[types.intp] * 14))


@njit(inline="always")
@no_type_check
def multiply(a: Any, b: Any, c: Any, lengths: Any, strides: Any, transposed: Any, add: bool) -> None:
    """Compute c[m, n] = a[m, k]·b[k, n], or add it to c if ``add``.

    Arrays are views that begin at the matrices' first elements. ``lengths`` are m, n, k. ``strides`` are the row
    strides of the stored matrices, in elements. ``transposed`` states whether a is stored as [k, m], and b as [n, k].
    """
    multiply_before(a[:0], a, b, c, lengths, strides, transposed, add)


@njit(inline="always")
@no_type_check
def multiply_before(
    following: Any, a: Any, b: Any, c: Any, lengths: Any, strides: Any, transposed: Any, add: bool
) -> None:
    """Compute ``multiply``, and meanwhile prefetch the array ``following`` if it has at most ``ROOM`` numbers."""
    _product_there(
        lengths[0],
        lengths[1],
        lengths[2],
        a.ctypes.data,
        strides[0],
        1 if transposed[0] else 0,
        b.ctypes.data,
        strides[1],
        1 if transposed[1] else 0,
        c.ctypes.data,
        strides[2],
        1 if add else 0,
        following.ctypes.data,
        following.size,
    )
