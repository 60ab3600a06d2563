"""Compute 8-bit matmuls (float8 or int8) of 16- or 32-bit arrays, with one scale per row and per column.

Both factors of a matmul are quantized along the contracted axis, with one scale per token and one per output channel.
The matmul is summed in float32 (float8) or int32 (int8) and multiplied by both scales. This applies to forward matmuls
and gradients of rows. Gradients of matrices, which are sums over tokens, keep their type.

For float8 this is torchao's recipe ``rowwise_with_gw_hp`` (``torchao.float8.Float8LinearRecipeName``), with two
differences: for gradients of rows torchao uses one scale per matrix, and torchao uses fast accumulation. The type is
E4M3 everywhere, because gradients with scales per row do not need E5M2's range. Scales are powers of two. For int8 this
is AQT's ``config_v4(fwd_bits=8, dlhs_bits=8, drhs_bits=None)``. Gradients use stochastic rounding, because otherwise
values much smaller than their row's maximum would always become 0. Scales and random numbers depend on only one token,
so results do not depend on how a batch is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import AxisType
from jaxtyping import Float, Int

from moejax.kernels.grouped_matmul import REFERENCE, GroupedMatmul
from moejax.kernels.platform import platform
from moejax.sharding import TENSOR, on_many_devices

TYPES: dict[str, Any] = {"fp8": jnp.float8_e4m3fn, "int8": jnp.int8}
"""Types, keyed by values of ``Runtime.matmul_quantization``."""

QUANTIZATIONS = ("none", *TYPES)

F32 = jnp.float32


class Quantized(NamedTuple):
    """A quantized array; ``values * scale`` is the rounded array."""

    values: Array
    scale: Array
    """Float32, with size 1 along the axes that share a scale."""


def quantize(x: Float[Array, "*shape"], axes: int | tuple[int, ...], quantization: str) -> Quantized:
    """Quantize an array with one scale for all numbers along ``axes``; the largest absolute value maps to the type's
    maximum.

    Float8 scales are rounded up to powers of two, so they do not change a number's significant bits. A number
    keeps 4 significant bits, unless another number with the same scale is more than 14,336 times larger. Non-finite
    numbers make their scale, and so the result, non-finite.
    """
    dtype = TYPES[quantization]
    is_float = jnp.issubdtype(dtype, jnp.floating)
    most = float(jnp.finfo(dtype).max) if is_float else float(jnp.iinfo(dtype).max)
    wide = x.astype(F32)
    least = jnp.finfo(F32).tiny
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axes, keepdims=True) / most, least)
    if is_float:
        exponent = lax.bitcast_convert_type(scale, jnp.uint32) & jnp.uint32(0x7F80_0000)
        below = lax.bitcast_convert_type(exponent, F32)
        scale = jnp.where(below == scale, scale, 2 * below)
    scaled = jnp.clip(wide / scale, -most, most)
    return Quantized((scaled if is_float else jnp.round(scaled)).astype(dtype), scale)


def rounded_at_random(
    gradient: Float[Array, "*shape"], axes: int | tuple[int, ...], quantization: str
) -> Float[Array, "*shape"]:
    """Round a gradient stochastically to int8 (``quantize``), so that sums over tokens are unbiased. Float8 gradients
    are returned unchanged, because float8 can represent small numbers.

    Int8's 7 bits are exact in bfloat16. The random number is a hash of three values: the number, its index along
    ``axes``, and the row's hash, an index-weighted sum of its bits. It is the same in every run, for any split of the
    tokens over devices and batches. An unweighted sum of bfloat16's 16 bits would distinguish only 65,536 rows. With
    more tokens, each index would have a fixed error that does not average out over tokens or steps.
    """
    if quantization != "int8":
        return gradient
    axes = (axes,) if isinstance(axes, int) else axes
    wide = gradient.astype(F32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axes, keepdims=True) / jnp.iinfo(jnp.int8).max, jnp.finfo(F32).tiny)
    # Use the gradient's own type: XLA may keep float32 between two kernels, whose last bits depend on the program.
    own, of_its_size = (gradient, jnp.uint16) if gradient.dtype.itemsize == 2 else (wide, jnp.uint32)
    bits = lax.bitcast_convert_type(own, of_its_size).astype(jnp.uint32)
    sizes = [size if axis in {one % wide.ndim for one in axes} else 1 for axis, size in enumerate(wide.shape)]
    of_place = _hashed(jnp.arange(1, math.prod(sizes) + 1, dtype=jnp.uint32)).reshape(sizes)
    of_row = jnp.sum(bits * (of_place | 1), axes, keepdims=True, dtype=jnp.uint32)
    upwards = (_hashed((bits ^ of_row) + of_place) >> 8).astype(F32) * 2.0**-24
    return (jnp.floor(wide / scale + upwards) * scale).astype(gradient.dtype)


def _hashed(x: Array) -> Array:
    """Apply the finalizer of MurmurHash3 (Appleby 2011): each input bit changes about half of the output bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)


def einsum(
    equation: str,
    x: Float[Array, "*of_x"],
    matrix: Float[Array, "*of_matrix"],
    quantization: str,
    precision: lax.PrecisionLike,
    *,
    is_gradient: bool = False,
) -> Float[Array, "*of_y"]:
    """Compute ``jnp.einsum`` of two arrays in 8 bits, and return the type of x. ``is_gradient`` states whether x is a
    gradient.

    Float8 matmuls themselves return the type of x, because multiplying by powers of two causes no further rounding. The
    letters of the result are letters of x or the matrix, in the same order. If a mesh splits the contracted axis along
    ``tensor`` (``SPLIT``), every part has its own scales, and devices reduce results in the type of x. With global
    scales, devices would first have to agree on the scales and then reduce 32-bit integers.
    """
    inputs, of_y = equation.split("->")
    of_x, of_matrix = inputs.split(",")
    summed = next((name for name in SPLIT if name in of_x and name in of_matrix and name not in of_y), None)
    parts = _parts(matrix.shape[of_matrix.index(summed)]) if summed else 1
    if summed and parts > 1:
        x, matrix = (_in_parts(a, of.index(summed), parts) for a, of in ((x, of_x), (matrix, of_matrix)))
        of_parts = f"{PART}{of_x},{PART}{of_matrix}->{PART}{of_y}"
        products = _einsum(of_parts, x, matrix, quantization, precision, is_gradient)
        # ``jnp.sum`` would reduce in float32, which devices would then send.
        return lax.reduce(products, jnp.zeros((), products.dtype), lax.add, (0,))
    return _einsum(equation, x, matrix, quantization, precision, is_gradient)


SPLIT = "hgf"
"""Letters of axes that ``tensor`` splits in projections' equations: heads, key-value heads, hidden units."""
PART = "P"


def _parts(size: int) -> int:
    """Return the number of parts into which the mesh splits an axis of ``SPLIT`` with this size."""
    mesh = jax.sharding.get_abstract_mesh()
    if not on_many_devices() or dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[TENSOR] is not AxisType.Auto:
        return 1
    parts = mesh.shape[TENSOR]
    return parts if size % parts == 0 else 1


def _in_parts(x: Array, axis: int, parts: int) -> Array:
    shape = x.shape
    return jnp.moveaxis(x.reshape(*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]), axis, 0)


def _einsum(
    equation: str, x: Array, matrix: Array, quantization: str, precision: lax.PrecisionLike, is_gradient: bool
) -> Array:
    inputs, of_y = equation.split("->")
    of_x, of_matrix = inputs.split(",")
    factors, scales = [], []
    for letters, array in ((of_x, x), (of_matrix, matrix)):
        axes = tuple(place for place, name in enumerate(letters) if name not in of_y)
        if is_gradient and letters is of_x:
            array = rounded_at_random(array, axes, quantization)
        one = quantize(array, axes, quantization)
        sizes = dict(zip(letters, array.shape, strict=True))
        factors.append(one.values)
        scales.append(one.scale.reshape([sizes.get(name, 1) for name in of_y]))
    dtype = jnp.int32 if quantization == "int8" else x.dtype
    if quantization == "fp8" and platform() == "gpu":
        # By default Hopper's matrix units sum with fewer bits than float32, which is too inexact for gradients.
        precision = lax.Precision.HIGHEST
    product = jnp.einsum(equation, *factors, precision=precision, preferred_element_type=dtype)
    return (product.astype(F32) * scales[0] * scales[1]).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul(
    quantization: str, rows: Float[Array, "*batch rows model"], matrix: Float[Array, "*of_matrix model hidden"]
) -> Float[Array, "*batch_of_both rows hidden"]:
    """Compute ``jnp.matmul`` of rows and matrices with broadcasting leading axes in 8 bits; return float32."""
    x, w = quantize(rows, -1, quantization), quantize(matrix, -2, quantization)
    product = jnp.matmul(x.values, w.values, preferred_element_type=jnp.int32 if quantization == "int8" else F32)
    return product.astype(F32) * x.scale * w.scale


def _save(quantization: str, rows: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return matmul(quantization, rows, matrix), (rows, matrix)


def _gradients(quantization: str, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    rows, matrix = saved
    whole: Any = matmul(quantization, rounded_at_random(dy, -1, quantization), matrix.swapaxes(-1, -2))
    # Rows that are multiplied by several matrices get the sum of the gradients.
    (drows,) = jax.linear_transpose(lambda x: jnp.broadcast_to(x, whole.shape), rows.astype(F32))(whole)
    of_matrix = partial(jnp.matmul, rows, preferred_element_type=F32)
    (dmatrix,) = jax.linear_transpose(of_matrix, matrix)(dy)
    return drows.astype(rows.dtype), dmatrix


matmul.defvjp(_save, _gradients)


def in_8_bits(backend: GroupedMatmul, kernel: Callable[..., Array], quantization: str) -> GroupedMatmul:
    """Return a backend that uses an 8-bit kernel ("grouped_matmul_8_bits") for outputs and gradients of rows."""
    return GroupedMatmul(
        forward=lambda rows, matrices, sizes: kernel(rows, matrices.swapaxes(1, 2), sizes, quantization),
        rows_gradient=lambda dy, matrices, sizes: kernel(
            rounded_at_random(dy, -1, quantization), matrices, sizes, quantization
        ),
        matrices_gradient=backend.matrices_gradient,
    )


def reference(
    rows: Float[Array, "R K"],
    matrices: Float[Array, "groups F K"],
    group_sizes: Int[Array, " groups"],
    quantization: str,
) -> Float[Array, "R F"]:
    """Multiply each group's rows by the transpose of its matrix, in 8 bits; return the type of the rows.

    The contracted axis is last in both factors, the only order in which Hopper's matrix units accept 8-bit numbers.
    """
    x, w = (quantize(one, -1, quantization) for one in (rows, matrices))
    exact = REFERENCE.rows_gradient(x.values.astype(F32) * x.scale, w.values.astype(F32) * w.scale, group_sizes)
    return exact.astype(rows.dtype)
