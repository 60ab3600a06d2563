"""Grouped products in float8 on Hopper, by a Mosaic kernel of our own.

Triton takes Hopper's matrix units for float8 only where sums may be kept in fewer bits than float32's, which Pallas
cannot ask for, and multiplies in float16 instead, by the instructions of an A100; products of int8, and on Blackwell of
both, it makes in 8 bits. No kernel that JAX brings along writes a wider type than it reads. An H200 found this one
right, and no faster than products in bfloat16 (docs/benchmarks.md); no CPU can interpret it: tests compile it. The
units keep sums in about 14 bits and cut off what is below (DeepSeek-V3, 2024, Sec. 3.3.2), so each sums ``INNER``
products alone, as there, and float32 adds these up.

Shapes: R rows, G groups, K summed over, F columns of the products.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul_triton import row_tiles
from moejax.kernels.quantization import Quantized, quantize
from moejax.platform import gpu_generation

HOPPER = 9
ROWS, COLUMNS, INNER = 128, 64, 128
"""Of a tile: sums in float32 and those of the matrix units in the registers of one group of warps; a line of 128 bytes
of both factors at once."""
LINES = 8
"""Rows that the matrix units read together, 1 kB: a tile that started between two would be read with rows missing."""
STAGES = 4
"""Pieces of both factors that are fetched ahead."""
RESIDENT = 2
"""Tiles that a multiprocessor works on at once, each by a group of warps, so that its matrix units have products of one
while the other adds up; each holds some 100 of its 228 kB."""


def supports(rows: Any, matrices: Any, *, quantization: str) -> bool:
    """Whether the program is for Hopper and float8, and tiles divide both widths."""
    return quantization == "fp8" and gpu_generation() == HOPPER and not any(w % INNER for w in matrices.shape[1:])


def in_8_bits(
    rows: Float[Array, "R K"], matrices: Float[Array, "G F K"], group_sizes: Int[Array, " G"], quantization: str
) -> Float[Array, "R F"]:
    """``moejax.kernels.quantization.reference``: the scales are multiplied in before a sum is written."""
    dtype = rows.dtype

    @sequential_vmap
    def product(x: Quantized, w: Quantized, group_sizes: Array) -> Array:
        with jax.numpy_dtype_promotion("standard"):
            return _product(x, w, group_sizes, dtype)

    return product(*(quantize(one, -1, quantization) for one in (rows, matrices)), group_sizes)


def _product(x: Quantized, w: Quantized, group_sizes: Array, dtype: Any) -> Array:
    from jax.experimental import pallas as pl

    plgpu: Any = importlib.import_module("jax.experimental.pallas.mosaic_gpu")

    (count, into), out_of = x.values.shape, w.values.shape[1]
    tiles = row_tiles(count, group_sizes, ROWS, LINES)
    # A tile is read whole, also where the rows end within it.
    values = jnp.pad(x.values, ((0, -count % LINES), (0, 0)))
    row_scale = jnp.pad(x.scale[:, 0], (0, ROWS))
    across = out_of // COLUMNS
    turns = tiles.group.shape[0] * across

    # JAX 0.10 wants an index, 0.12 takes none.
    whole = ((),) if jax.__version_info__ < (0, 11) else ()
    load = partial(lambda ref, **options: plgpu.load(ref, *whole, **options), optimized=False)

    # As matrix units read 8-bit numbers: in tiles of lines of 128 bytes, whose pieces of 16 bytes are exchanged.
    swizzled = (plgpu.TilingTransform((LINES, INNER)), plgpu.SwizzleTransform(INNER))
    block = partial(plgpu.BlockSpec, transforms=swizzled)

    def kernel(
        x: Any, w: Any, of_rows: Any, of_columns: Any, group: Any, start: Any, first: Any, stop: Any, out: Any
    ) -> None:
        def write(total: Array, shared: Any, start: Any, before: Any, held: Any, column: Any) -> None:
            shared[...] = total.astype(dtype)
            plgpu.commit_smem()
            # What is copied has a length that is known when it is compiled: the powers of two that ``held`` is made of.
            done, length = before, ROWS
            while length:

                @pl.when(held & length != 0)
                def _(done: Any = done, length: int = length) -> None:
                    place = out.at[pl.ds(start + done, length), pl.ds(column * COLUMNS, COLUMNS)]
                    plgpu.copy_smem_to_gmem(shared.at[pl.ds(done, length)], place)

                done, length = done + (held & length), length // 2
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)

        @plgpu.nd_loop((turns,), collective_axes="block")
        def _(turn: Any) -> None:
            # The tiles of columns of the same rows one after the other.
            tile, column = lax.div(turn.index[0], across), lax.rem(turn.index[0], across)
            matrix, place = group[tile], pl.multiple_of(start[tile], LINES)
            before = first[tile] - place
            held = jnp.minimum(stop[tile] - place, ROWS) - before

            @pl.when(held > 0)
            def _() -> None:
                def add(_: Any, a: Any, b: Any, total: Array) -> Array:
                    def of_piece(sums: Any) -> Array:
                        plgpu.wgmma(sums, a, plgpu.transpose_ref(b, (1, 0)))
                        return sums[...]

                    return total + pl.run_scoped(of_piece, plgpu.ACC((ROWS, COLUMNS)))

                layout = plgpu.Layout.WGMMA
                total = plgpu.emit_pipeline(
                    add,
                    grid=(into // INNER,),
                    in_specs=[
                        block((ROWS, INNER), lambda inner: (0, inner)),
                        block((COLUMNS, INNER), lambda inner: (column, inner)),
                    ],
                    max_concurrent_steps=STAGES,
                    init_carry=plgpu.layout_cast(jnp.zeros((ROWS, COLUMNS), jnp.float32), layout),
                )(x.at[pl.ds(place, ROWS)], w.at[matrix])
                rows = load(of_rows.at[pl.ds(place, ROWS)], layout=layout.reduce(1))
                columns = load(of_columns.at[matrix, pl.ds(column * COLUMNS, COLUMNS)], layout=layout.reduce(0))
                total = total * lax.broadcast_in_dim(rows, total.shape, [0])
                total = total * lax.broadcast_in_dim(columns, total.shape, [1])
                pl.run_scoped(
                    lambda shared: write(total, shared, place, before, held, column), plgpu.SMEM(total.shape, dtype)
                )

    call = plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((count, out_of), dtype),
        grid=(RESIDENT * MULTIPROCESSORS,),
        grid_names=("block",),
    )
    return call(values, w.values, row_scale, w.scale[..., 0], *tiles)


MULTIPROCESSORS = 132
"""Of an H100 or H200."""
