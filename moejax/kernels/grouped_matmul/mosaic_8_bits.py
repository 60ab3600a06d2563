"""Compute grouped matmuls in float8 on Hopper with our own Mosaic kernel.

Triton uses Hopper's float8 matrix units only if sums may have lower precision than float32, which Pallas cannot
request. Through Pallas, Triton therefore multiplies float8 in float16 with the A100's instructions. It multiplies int8
in 8 bits, and on Blackwell also float8. The results of JAX's own kernels cannot have a wider type than their inputs. On
an H200, our kernel was correct, but not faster than bfloat16 matmuls (docs/benchmarks.md). It cannot be interpreted on
a CPU; tests compile it. The matrix units keep about 14 bits of a sum and truncate the rest (DeepSeek-V3, 2024, Sec.
3.3.2). As in that paper, a unit sums only ``INNER`` products at a time, and these sums are added in float32.

Shapes: R rows, G groups, K contracted width, F columns of the results.
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

from moejax.kernels.grouped_matmul.triton import row_tiles
from moejax.kernels.platform import gpu_generation
from moejax.kernels.quantization import Quantized, quantize
from moejax.kernels.table import Operand

HOPPER = 9
ROWS, COLUMNS, INNER = 128, 64, 128
"""Tile sizes. The float32 sums and the matrix units' sums fit into the registers of one warpgroup. ``INNER`` is a
128-byte line of both factors."""
LINES = 8
"""Number of rows that the matrix units read together (1 kB). Tiles must start at a multiple of this number."""
STAGES = 4
"""Number of prefetched blocks of both factors."""
RESIDENT = 2
"""Number of concurrent tiles per multiprocessor, one per warpgroup, so that the matrix units compute one tile while the
other accumulates. Each uses about 100 kB of the 228 kB of shared memory."""


def supports(rows: Operand, matrices: Operand, *, quantization: str) -> bool:
    """Return whether the program uses float8 on Hopper, and tiles divide both widths."""
    return quantization == "fp8" and gpu_generation() == HOPPER and not any(w % INNER for w in matrices.shape[1:])


def in_8_bits(
    rows: Float[Array, "R K"], matrices: Float[Array, "G F K"], group_sizes: Int[Array, " G"], quantization: str
) -> Float[Array, "R F"]:
    """Compute ``moejax.kernels.quantization.reference``; the scales are applied before a sum is written."""
    dtype = rows.dtype

    @sequential_vmap
    def product(x: Quantized, w: Quantized, group_sizes: Array) -> Array:
        with jax.numpy_dtype_promotion("standard"):
            return _product(x, w, group_sizes, dtype)

    return product(*(quantize(one, -1, quantization) for one in (rows, matrices)), group_sizes)


def _product(x: Quantized, w: Quantized, group_sizes: Array, dtype: jnp.dtype) -> Array:
    from jax.experimental import pallas as pl

    plgpu: Any = importlib.import_module("jax.experimental.pallas.mosaic_gpu")

    (count, into), out_of = x.values.shape, w.values.shape[1]
    tiles = row_tiles(count, group_sizes, ROWS, LINES)
    # A tile is read completely, even if the rows end inside it.
    values = jnp.pad(x.values, ((0, -count % LINES), (0, 0)))
    row_scale = jnp.pad(x.scale[:, 0], (0, ROWS))
    across = out_of // COLUMNS
    turns = tiles.group.shape[0] * across

    # JAX 0.10 needs an index; 0.12 accepts none.
    whole = ((),) if jax.__version_info__ < (0, 11) else ()
    load = partial(lambda ref, **options: plgpu.load(ref, *whole, **options), optimized=False)

    # The matrix units read 8-bit numbers in tiles of 128-byte lines with swizzled 16-byte pieces.
    swizzled = (plgpu.TilingTransform((LINES, INNER)), plgpu.SwizzleTransform(INNER))
    block = partial(plgpu.BlockSpec, transforms=swizzled)

    def kernel(
        x: Any, w: Any, of_rows: Any, of_columns: Any, group: Any, start: Any, first: Any, stop: Any, out: Any
    ) -> None:
        def write(total: Array, shared: Any, start: Any, before: Any, held: Any, column: Any) -> None:
            shared[...] = total.astype(dtype)
            plgpu.commit_smem()
            # Copies need a static length: ``held`` is decomposed into powers of two.
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
            # Column tiles of the same rows are consecutive.
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
"""Number of multiprocessors of an H100 or H200."""
