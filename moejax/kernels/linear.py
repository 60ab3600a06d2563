"""Define linear maps of tokens and their gradients, for projections of attention and dense layers, and for the
router."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, custom_vjp, lax
from jaxtyping import Float

from moejax.kernels import quantization
from moejax.kernels.platform import gpu_generation
from moejax.kernels.table import select


class ProductTypes(NamedTuple):
    """Types in a projection's computation, in addition to the type of its rows."""

    reduce_dtype: str = "float32"
    """``Runtime.reduce_dtype``."""
    quantization: str = "none"
    """``Runtime.matmul_quantization``."""


def project(
    equation: str,
    x: Float[Array, "*of_x"],
    matrix: Float[Array, "*of_matrix"],
    precision: lax.PrecisionLike = None,
    types: ProductTypes | None = None,
) -> Float[Array, "*of_y"]:
    """Compute ``jnp.einsum(equation, x, matrix)`` in the type of x; token axes come first in x and in the result.

    The matrix is the float32 master copy, which is cast inside. Its gradient, a sum over tokens, therefore has
    ``types.reduce_dtype`` or the type of x, the wider of the two, when it is reduced over devices.
    """
    return _project(equation, on_matrix_units(precision), types or ProductTypes(), x, matrix)


def on_matrix_units(precision: lax.PrecisionLike) -> lax.PrecisionLike:
    """Return the precision, with the highest precision replaced on NVIDIA GPUs by an algorithm of six bfloat16 matmuls.

    Each factor is split into three parts of 8 bits, and terms below float32's last bit are omitted. The result is as
    exact as float32 (``tests/kernels/test_linear.py``), which NVIDIA's matrix units do not support. TPUs use this
    algorithm by default for the highest precision, and CPUs support float32.
    """
    if precision is lax.Precision.HIGHEST and gpu_generation() >= 8:
        return lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    return precision


def add_bias(x: Float[Array, "*tokens n"], bias: Float[Array, "*of_bias"]) -> Float[Array, "*tokens n"]:
    """Add a bias to every token in the bias's type. Its gradient is a sum over tokens, and a bfloat16 sum stops growing
    after some hundred terms."""
    return (x.astype(bias.dtype) + bias).astype(x.dtype)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _project(equation: str, precision: lax.PrecisionLike, types: ProductTypes, x: Array, matrix: Array) -> Array:
    return _product(equation, precision, types, x, matrix.astype(x.dtype))


def _product(
    equation: str,
    precision: lax.PrecisionLike,
    types: ProductTypes,
    x: Array,
    matrix: Array,
    *,
    is_gradient: bool = False,
) -> Array:
    if types.quantization == "none":
        return jnp.einsum(equation, x, matrix, precision=precision)
    return quantization.einsum(equation, x, matrix, types.quantization, precision, is_gradient=is_gradient)


def _save(
    equation: str, precision: lax.PrecisionLike, types: ProductTypes, x: Array, matrix: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    # An empty array stores the type of the master copy.
    cast, empty = matrix.astype(x.dtype), jnp.zeros((0,), matrix.dtype)
    return _product(equation, precision, types, x, cast), (x, cast, empty)


def _gradients(
    equation: str, precision: lax.PrecisionLike, types: ProductTypes, saved: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, matrix, master = saved
    of_inputs, of_y = equation.split("->")
    of_x, of_matrix = of_inputs.split(",")
    dx = _product(f"{of_y},{of_matrix}->{of_x}", precision, types, dy, matrix, is_gradient=True)
    dtype = max(x.dtype, jnp.dtype(types.reduce_dtype), key=lambda one: one.itemsize)
    arguments = f"{of_x},{of_y}->{of_matrix}", x, dy
    dmatrix = select("linear_gradient", *arguments)(*arguments, precision=precision, dtype=dtype)
    return dx, dmatrix.astype(master.dtype)


_project.defvjp(_save, _gradients)


def reference(
    equation: str, x: Float[Array, "*of_x"], dy: Float[Array, "*of_y"], *, precision: lax.PrecisionLike, dtype: Any
) -> Float[Array, "*of_matrix"]:
    """Return a matrix's gradient, a sum over tokens: ``jnp.einsum(equation, x, dy)`` in ``dtype``."""
    return jnp.einsum(equation, x, dy, precision=precision, preferred_element_type=dtype)


def over_one_axis(
    equation: str, x: Float[Array, "*of_x"], dy: Float[Array, "*of_y"], *, precision: lax.PrecisionLike, dtype: Any
) -> Float[Array, "*of_matrix"]:
    """Return the gradient of ``reference``, computed with all token axes merged, for CPUs. For a sum over two axes, XLA
    would write a transposed copy of an array with all tokens."""
    tokens = token_axes(equation)
    product = partial(jnp.einsum, "tx,ty->xy", precision=precision, preferred_element_type=dtype)
    dmatrix = product(*(a.reshape(math.prod(a.shape[:tokens]), -1) for a in (x, dy)))
    return dmatrix.reshape(*x.shape[tokens:], *dy.shape[tokens:])


def token_axes(equation: str) -> int:
    """Return the number of token axes, which are the first axes of both operands of a gradient."""
    of_x, of_y = equation.split("->")[0].split(",")
    return sum(name in of_y for name in of_x)
