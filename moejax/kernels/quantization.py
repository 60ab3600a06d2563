"""Products of 8-bit numbers with a scale for each row and each column, float8 or int8, from arrays of 16 or 32 bits.

What is quantized is a product's two factors, each along what the product sums over: a scale for every token and for
every output channel of a matrix. The product is summed in float32 (int32), and multiplied by both scales. Forward
products and gradients of rows are computed so; gradients of matrices, sums over tokens, keep their type.

For float8 this is torchao's recipe ``rowwise_with_gw_hp`` (``torchao.float8.Float8LinearRecipeName``) but for gradients
of rows, where torchao scales a matrix as a whole, and for fast sums: E4M3 everywhere, as scales of rows leave gradients
no need of E5M2's range, and scales that are powers of two. For int8 it is AQT's ``config_v4(fwd_bits=8, dlhs_bits=8,
drhs_bits=None)``: gradients are rounded at random, up as often as a number is near the upper neighbour, as what is
small beside the largest of its row would else always become 0. No scale, and no random number, is of more than one
token, so results do not depend on how a batch is cut.
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
from moejax.platform import platform
from moejax.sharding import TENSOR, on_many_devices

TYPES: dict[str, Any] = {"fp8": jnp.float8_e4m3fn, "int8": jnp.int8}
"""Types by the choices of ``Runtime.matmul_quantization`` that quantize."""

QUANTIZATIONS = ("none", *TYPES)

F32 = jnp.float32


class Quantized(NamedTuple):
    """``values * scale`` is the array, rounded."""

    values: Array
    scale: Array
    """Float32, of size 1 along the axes that share a scale."""


def quantize(x: Float[Array, "*shape"], axes: int | tuple[int, ...], quantization: str) -> Quantized:
    """An array with one scale for all numbers along ``axes``: the largest of them becomes the largest of the type.

    Scales of float8 are rounded up to powers of two, which changes no digit of a number: it is rounded to 4 bits
    whatever it shares its scale with, unless that is 2^14 times as large. Numbers that are not finite make their scale
    and so the product not finite.
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
    """A gradient whose nearest numbers of 8 bits (``quantize``) are either neighbour of its own, each as often as that
    is near, so that sums over tokens are right; as it is for float8, which has small numbers.

    Int8's 7 bits survive bfloat16. What decides is a hash of a number, its place along ``axes`` and a sum of the bits
    of all numbers there, each times a number of its place: the same in every run, whatever devices and batches the
    tokens are cut over. Those of bfloat16 are 16: added up as they are, they would tell 65,536 rows apart, and over
    more tokens than that each place would have an error of its own that no further token or step takes away.
    """
    if quantization != "int8":
        return gradient
    axes = (axes,) if isinstance(axes, int) else axes
    wide = gradient.astype(F32)
    scale = jnp.maximum(jnp.max(jnp.abs(wide), axes, keepdims=True) / jnp.iinfo(jnp.int8).max, jnp.finfo(F32).tiny)
    # Of its own type: of what XLA keeps in float32 between two kernels the last bits would be another program's.
    own, of_its_size = (gradient, jnp.uint16) if gradient.dtype.itemsize == 2 else (wide, jnp.uint32)
    bits = lax.bitcast_convert_type(own, of_its_size).astype(jnp.uint32)
    sizes = [size if axis in {one % wide.ndim for one in axes} else 1 for axis, size in enumerate(wide.shape)]
    of_place = _hashed(jnp.arange(1, math.prod(sizes) + 1, dtype=jnp.uint32)).reshape(sizes)
    of_row = jnp.sum(bits * (of_place | 1), axes, keepdims=True, dtype=jnp.uint32)
    upwards = (_hashed((bits ^ of_row) + of_place) >> 8).astype(F32) * 2.0**-24
    return (jnp.floor(wide / scale + upwards) * scale).astype(gradient.dtype)


def _hashed(x: Array) -> Array:
    """The finalizer of MurmurHash3 (Appleby 2011): every bit of 32 changes half of those of the result."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)


def einsum(
    equation: str,
    x: Float[Array, "*of_x"],
    matrix: Float[Array, "*of_matrix"],
    quantization: str,
    precision: Any,
    *,
    is_gradient: bool = False,
) -> Float[Array, "*of_y"]:
    """``jnp.einsum`` of two arrays in 8 bits, in the type of x, which may be a gradient.

    Products of float8 come out in that type too: scales that are powers of two round nothing.

    Every letter of the result is one of x or of the matrix, in the order that it has there. Where a mesh splits what is
    summed over along ``tensor`` (``SPLIT``), every part has scales of its own, and devices add up products in the type
    of x: with scales of the whole they would agree on these first, and then add up integers of 32 bits.
    """
    inputs, of_y = equation.split("->")
    of_x, of_matrix = inputs.split(",")
    summed = next((name for name in SPLIT if name in of_x and name in of_matrix and name not in of_y), None)
    parts = _parts(matrix.shape[of_matrix.index(summed)]) if summed else 1
    if summed and parts > 1:
        x, matrix = (_in_parts(a, of.index(summed), parts) for a, of in ((x, of_x), (matrix, of_matrix)))
        of_parts = f"{PART}{of_x},{PART}{of_matrix}->{PART}{of_y}"
        products = _einsum(of_parts, x, matrix, quantization, precision, is_gradient)
        # As it is; ``jnp.sum`` would add up in float32, and devices send that.
        return lax.reduce(products, jnp.zeros((), products.dtype), lax.add, (0,))
    return _einsum(equation, x, matrix, quantization, precision, is_gradient)


SPLIT = "hgf"
"""Letters that equations of projections have for what ``tensor`` splits: heads, key-value heads, hidden units."""
PART = "P"


def _parts(size: int) -> int:
    """Parts of an axis of such a letter that lie on devices of their own, as ``moejax.sharding`` splits it."""
    mesh = jax.sharding.get_abstract_mesh()
    if not on_many_devices() or dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[TENSOR] is not AxisType.Auto:
        return 1
    parts = mesh.shape[TENSOR]
    return parts if size % parts == 0 else 1


def _in_parts(x: Array, axis: int, parts: int) -> Array:
    shape = x.shape
    return jnp.moveaxis(x.reshape(*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :]), axis, 0)


def _einsum(equation: str, x: Array, matrix: Array, quantization: str, precision: Any, is_gradient: bool) -> Array:
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
        # Otherwise Hopper's matrix units keep sums in fewer bits than float32's, which gradients do not bear.
        precision = lax.Precision.HIGHEST
    product = jnp.einsum(equation, *factors, precision=precision, preferred_element_type=dtype)
    return (product.astype(F32) * scales[0] * scales[1]).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def matmul(
    quantization: str, rows: Float[Array, "*batch rows model"], matrix: Float[Array, "*of_matrix model hidden"]
) -> Float[Array, "*batch_of_both rows hidden"]:
    """``jnp.matmul`` of rows and matrices whose leading axes broadcast, in 8 bits; in float32."""
    x, w = quantize(rows, -1, quantization), quantize(matrix, -2, quantization)
    product = jnp.matmul(x.values, w.values, preferred_element_type=jnp.int32 if quantization == "int8" else F32)
    return product.astype(F32) * x.scale * w.scale


def _save(quantization: str, rows: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return matmul(quantization, rows, matrix), (rows, matrix)


def _gradients(quantization: str, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    rows, matrix = saved
    whole: Any = matmul(quantization, rounded_at_random(dy, -1, quantization), matrix.swapaxes(-1, -2))
    # Rows that several matrices met have the sum of their gradients.
    (drows,) = jax.linear_transpose(lambda x: jnp.broadcast_to(x, whole.shape), rows.astype(F32))(whole)
    of_matrix = partial(jnp.matmul, rows, preferred_element_type=F32)
    (dmatrix,) = jax.linear_transpose(of_matrix, matrix)(dy)
    return drows.astype(rows.dtype), dmatrix


matmul.defvjp(_save, _gradients)


def in_8_bits(backend: GroupedMatmul, kernel: Callable[..., Array], quantization: str) -> GroupedMatmul:
    """A backend whose products of rows by matrices are those of a kernel of "grouped_matmul_8_bits"."""
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
    """Each group's rows by the transpose of its matrix, in 8 bits; in the type of the rows.

    Both are read along what is summed over, the one order in which Hopper's matrix units take 8-bit numbers.
    """
    x, w = (quantize(one, -1, quantization) for one in (rows, matrices))
    exact = REFERENCE.rows_gradient(x.values.astype(F32) * x.scale, w.values.astype(F32) * w.scale, group_sizes)
    return exact.astype(rows.dtype)
