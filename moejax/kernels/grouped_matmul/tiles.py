"""Choose kernels and tile sizes of grouped matmuls on NVIDIA GPUs from measurements.

On Hopper all tile sizes of our Triton kernels have similar speed. Eight were timed on an H200, in bfloat16, at the
widths of OLMoE, Qwen3 and DeepSeek-V3 with 512 to 4,096 rows per expert (``HOPPER``). For Blackwell, ``RECORDS`` are
the tokamax authors' measurements of their kernels on a B200, from the installed files of tokamax 0.0.12 (read on
2026-11-25). Each record gives the faster of two kernels for one shape, in bfloat16 with equal groups, at its best sizes
(median of five runs). Records are omitted if this release rejects their sizes as too large for a multiprocessor.
Other shapes use the sizes of the nearest record, and ``Choice.is_measured`` is False. No measurements of JAX's Mosaic
kernels are published; their sizes follow from a multiprocessor's memory. A GB200 has the same multiprocessors as a
B200.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp

from moejax.kernels.platform import gpu_generation
from moejax.kernels.table import Operand


class TritonTile(NamedTuple):
    """Tile sizes of a Triton kernel."""

    rows: int
    """Rows per tile of the result."""
    columns: int
    inner: int
    """Length along the contracted axis per step."""
    warps: int
    stages: int
    """Number of prefetched blocks."""


class MosaicTile(NamedTuple):
    """Tile sizes of tokamax's Mosaic kernels."""

    rows: int
    columns: int
    inner: int
    stages: int
    split_rows: int
    is_persistent: bool
    is_collective: bool
    """True if two multiprocessors share a tile."""
    minor: str
    """Side of the result along which tiles advance first: ``M`` for rows, ``N`` for columns."""
    width: int
    """Number of tiles along this side before tiles advance along the other side."""


class MeasuredTile(NamedTuple):
    """A speed measurement of a tile for one shape."""

    part: str
    """Measured part: ``forward``, or the gradient of ``rows`` or of ``matrices``."""
    matrices: tuple[int, int, int]
    """Number of matrices, and their input and output widths."""
    rows: int
    tile: TritonTile | MosaicTile
    teraflops: float
    """Speed, in 10¹² floating-point operations per second."""


class Choice(NamedTuple):
    """Tile sizes for a shape, and their source."""

    tile: TritonTile | MosaicTile
    is_measured: bool
    """True if the record has the same part and widths, and its rows per group differ at most by a factor of two."""
    record: MeasuredTile
    """The nearest record."""


RECORDS: tuple[MeasuredTile, ...] = (
    MeasuredTile("forward", (256, 512, 7168), 131_072, MosaicTile(64, 128, 256, 2, 2, True, True, "M", 1), 600),
    MeasuredTile("forward", (128, 768, 2048), 393_216, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 8), 1097),
    MeasuredTile("forward", (128, 1536, 4096), 131_072, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 4), 879),
    MeasuredTile("forward", (128, 1536, 4096), 262_144, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 4), 1092),
    MeasuredTile("forward", (128, 1536, 4096), 524_288, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 4), 1239),
    MeasuredTile("forward", (128, 2048, 768), 131_072, MosaicTile(64, 128, 256, 2, 1, True, True, "M", 8), 844),
    MeasuredTile("forward", (128, 2048, 768), 393_216, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 8), 1138),
    MeasuredTile("forward", (128, 2880, 2880), 327_680, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 2), 1104),
    MeasuredTile("forward", (128, 4096, 1536), 131_072, MosaicTile(64, 128, 256, 2, 2, True, True, "M", 4), 878),
    MeasuredTile("forward", (128, 4096, 1536), 262_144, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 2), 1098),
    MeasuredTile("forward", (128, 4096, 1536), 524_288, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 4), 1278),
    MeasuredTile("forward", (256, 7168, 512), 131_072, MosaicTile(128, 128, 128, 2, 1, False, True, "N", 8), 628),
    MeasuredTile("forward", (256, 7168, 2048), 65_536, MosaicTile(64, 128, 256, 2, 2, True, True, "N", 8), 433),
    MeasuredTile("forward", (128, 7168, 2048), 131_072, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 1), 858),
    MeasuredTile("forward", (256, 7168, 2048), 262_144, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 2), 876),
    MeasuredTile("matrices", (128, 768, 2048), 393_216, TritonTile(256, 256, 32, 8, 5), 1312),
    MeasuredTile("matrices", (128, 1536, 4096), 131_072, TritonTile(256, 256, 32, 8, 5), 1121),
    MeasuredTile("matrices", (128, 1536, 4096), 262_144, TritonTile(256, 256, 32, 8, 5), 1301),
    MeasuredTile("matrices", (128, 1536, 4096), 524_288, TritonTile(256, 256, 32, 8, 5), 1398),
    MeasuredTile("matrices", (128, 2048, 768), 131_072, TritonTile(256, 256, 32, 8, 5), 1057),
    MeasuredTile("matrices", (128, 2048, 768), 393_216, TritonTile(256, 256, 32, 8, 6), 1314),
    MeasuredTile("matrices", (128, 2880, 2880), 327_680, TritonTile(128, 256, 32, 4, 4), 1200),
    MeasuredTile("matrices", (128, 4096, 1536), 131_072, TritonTile(256, 256, 32, 8, 5), 1130),
    MeasuredTile("matrices", (128, 4096, 1536), 262_144, TritonTile(256, 256, 32, 8, 5), 1287),
    MeasuredTile("matrices", (128, 4096, 1536), 524_288, TritonTile(256, 256, 64, 8, 3), 1386),
    MeasuredTile("matrices", (256, 7168, 512), 131_072, TritonTile(128, 256, 32, 4, 4), 812),
    MeasuredTile("matrices", (256, 7168, 2048), 65_536, TritonTile(128, 256, 32, 4, 4), 574),
    MeasuredTile("matrices", (256, 7168, 2048), 131_072, TritonTile(128, 256, 32, 4, 4), 873),
    MeasuredTile("matrices", (256, 7168, 2048), 262_144, TritonTile(128, 256, 32, 4, 4), 1106),
    MeasuredTile("rows", (256, 512, 7168), 131_072, MosaicTile(128, 128, 128, 2, 2, False, True, "N", 4), 1019),
    MeasuredTile("rows", (128, 768, 2048), 393_216, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 8), 1272),
    MeasuredTile("rows", (128, 1536, 4096), 131_072, MosaicTile(64, 128, 256, 2, 2, True, True, "M", 4), 1196),
    MeasuredTile("rows", (128, 1536, 4096), 262_144, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 2), 1308),
    MeasuredTile("rows", (128, 1536, 4096), 524_288, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 4), 1397),
    MeasuredTile("rows", (128, 2048, 768), 131_072, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 8), 1100),
    MeasuredTile("rows", (128, 2048, 768), 393_216, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 8), 1215),
    MeasuredTile("rows", (128, 2880, 2880), 327_680, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 2), 1254),
    MeasuredTile("rows", (128, 4096, 1536), 131_072, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 4), 1213),
    MeasuredTile("rows", (128, 4096, 1536), 262_144, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 4), 1311),
    MeasuredTile("rows", (128, 4096, 1536), 524_288, MosaicTile(128, 128, 128, 2, 1, False, True, "M", 4), 1380),
    MeasuredTile("rows", (256, 7168, 512), 131_072, MosaicTile(64, 128, 256, 2, 2, True, True, "M", 2), 948),
    MeasuredTile("rows", (256, 7168, 2048), 65_536, MosaicTile(64, 128, 256, 2, 1, True, True, "M", 1), 922),
    MeasuredTile("rows", (128, 7168, 2048), 131_072, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 2), 1251),
    MeasuredTile("rows", (256, 7168, 2048), 262_144, MosaicTile(128, 128, 128, 2, 2, False, True, "M", 1), 1227),
)
"""Measurements on a B200, for the best kernel only."""

HOPPER = TritonTile(128, 128, 64, 4, 3)
"""Choice for an H200. Over 30 matmuls, it was 1.4 % slower than the best of 8 sizes on average, and 4.3 % at most. All
sizes were within 3.2 % on average (docs/benchmarks.md)."""


def nearest(part: str, rows: int, groups: int, into: int, out_of: int) -> Choice:
    """Return tokamax's kernel and sizes on Blackwell for one part of a grouped matmul, from the nearest record.

    ``into`` and ``out_of`` are the widths of the matrices, for every part.
    """
    per_group = rows / groups

    def distance(record: MeasuredTile) -> float:
        count, *sides = record.matrices
        theirs = (*sides, record.rows / count)
        return sum(abs(math.log(one / other)) for one, other in zip((into, out_of, per_group), theirs, strict=True))

    best = min((record for record in RECORDS if record.part == part), key=distance)
    count, *sides = best.matrices
    is_same = sides == [into, out_of] and abs(math.log2(per_group * count / best.rows)) <= 1
    return Choice(best.tile, is_same, best)


def _fitting(size: int, width: int) -> int:
    """Return a tile's side: a power of two, at least 16, limited by the width."""
    return min(size, max(16, 1 << (width - 1).bit_length()))


def triton_tile(
    generation: int, part: str, rows: int, groups: int, into: int, out_of: int, item_bytes: int
) -> TritonTile:
    """Return tile sizes for our Triton kernels. On Hopper they come from our measurements. On Blackwell they come from
    the nearest record if it is a Triton kernel, because tokamax's Triton kernels are similar to ours; otherwise they
    are the sizes of most records. Other GPUs were not measured.

    Float32 uses the smallest tiles, because its blocks are twice as large and are multiplied in several steps. In 8
    bits, blocks with the same number of bytes are twice as long.
    """
    sides = (into, out_of) if part == "matrices" else (rows, out_of if part == "forward" else into)
    inner = rows if part == "matrices" else into if part == "forward" else out_of
    if item_bytes > 2:
        tile = TritonTile(64, 64, 32, 4, 2)
    elif generation == 10:
        recorded = nearest(part, rows, groups, into, out_of).tile
        # Only these GPUs keep sums in tensor memory; other GPUs have few registers.
        tile = recorded if isinstance(recorded, TritonTile) else TritonTile(256, 256, 32, 4, 3)
    else:
        tile = HOPPER if generation == 9 else TritonTile(128, 128, 32, 4, 4)
    length = 2 * tile.inner if item_bytes == 1 else tile.inner
    return tile._replace(
        rows=_fitting(tile.rows, sides[0]), columns=_fitting(tile.columns, sides[1]), inner=_fitting(length, inner)
    )


def in_16_bits_on(generation: int, rows: Operand, matrices: Operand) -> bool:
    """Return whether the program is for this GPU generation and multiplies in 16 bits, as Mosaic kernels require."""
    is_16_bits = rows.dtype in (jnp.bfloat16, jnp.float16) and rows.dtype == matrices.dtype
    return is_16_bits and gpu_generation() == generation


class JaxTile(NamedTuple):
    """Tile sizes of JAX's Mosaic kernels."""

    rows: int
    columns: int
    inner: int
    stages: int
    width: int
    """Number of tiles along the columns before tiles advance along the rows."""


HOPPER_SIDES = (128, 64)
"""Columns per tile on Hopper: the registers of 128 threads hold at most 128 × 128 float32 sums."""
SHARED_BYTES = 232_448 - 4096
"""Shared memory of a thread block in bytes, minus a reserve for barriers."""


def jax_tile(generation: int, rows: int, groups: int, into: int, out_of: int) -> JaxTile | None:
    """Return unmeasured tile sizes for a grouped matmul in 16 bits; None if JAX's kernels do not support these widths.

    Both widths must be multiples of a tile's columns, because the gradient exchanges them. On Blackwell, two
    multiprocessors share a tile with twice the rows and columns.
    """
    shared_by = 2 if generation == 10 else 1
    sides = {9: HOPPER_SIDES, 10: (128,)}.get(generation, ())
    columns = next((side for side in sides if not any(width % (shared_by * side) for width in (into, out_of))), None)
    if columns is None:
        return None
    height = 128 if generation == 10 or rows >= 256 * groups else 64
    stages = min(6, (SHARED_BYTES - 2 * height * columns) // (2 * 64 * (height + columns)))
    tiles = out_of // (shared_by * columns)
    return JaxTile(height, columns, 64, stages, next(width for width in (8, 4, 2, 1) if tiles % width == 0))
