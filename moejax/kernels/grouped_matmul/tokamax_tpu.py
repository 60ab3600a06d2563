"""Compute grouped matmuls in 8 bits on a TPU with tokamax's Pallas kernel; JAX's own kernel does not support 8 bits.

The scales are applied before a sum is written. The kernel has not been timed. On other platforms it is interpreted, for
tests.
"""

from __future__ import annotations

from jax import Array
from jax.custom_batching import sequential_vmap
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul.megablox import LANES, row_tile, tile_width, whole_tiles
from moejax.kernels.platform import platform
from moejax.kernels.private_api import tokamax_tpu
from moejax.kernels.quantization import Quantized, quantize
from moejax.kernels.table import Operand


def supports(rows: Operand, matrices: Operand, **options: str) -> bool:
    """Return whether both widths are at least a TPU's number of lanes, as the kernel requires."""
    return min(matrices.shape[1:]) >= LANES


def in_8_bits(
    rows: Float[Array, "R K"], matrices: Float[Array, "G F K"], group_sizes: Int[Array, " G"], quantization: str
) -> Float[Array, "R F"]:
    """Compute ``moejax.kernels.quantization.reference``."""
    groups, into, out_of = matrices.shape[0], rows.shape[1], matrices.shape[1]
    height = row_tile(rows.shape[0], groups)

    @sequential_vmap
    def product(x: Quantized, w: Quantized, group_sizes: Array) -> Array:
        tile = height, tile_width(into), tile_width(out_of)
        return tokamax_tpu(x, w, group_sizes, dtype=rows.dtype, tile=tile, interpret=platform() != "tpu")

    whole = whole_tiles(rows, height)
    x, w = (quantize(one, -1, quantization) for one in (whole, matrices))
    return product(x, w, group_sizes)[: rows.shape[0]]
