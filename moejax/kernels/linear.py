"""Linear maps of tokens: projections of attention and of dense layers, and the router; and their gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, custom_vjp, lax
from jaxtyping import Float

from moejax.kernels import quantization
from moejax.kernels.table import select
from moejax.platform import gpu_generation


class ProductTypes(NamedTuple):
    """What a projection is computed in, beside the type of its rows."""

    reduce_dtype: str = "float32"
    """``Runtime.reduce_dtype``."""
    quantization: str = "none"
    """``Runtime.matmul_quantization``."""


def project(
    equation: str,
    x: Float[Array, "*of_x"],
    matrix: Float[Array, "*of_matrix"],
    precision: Any = None,
    types: ProductTypes | None = None,
) -> Float[Array, "*of_y"]:
    """``jnp.einsum(equation, x, matrix)`` in the type of x; the axes of tokens come first in x and in the result.

    The matrix is the master copy: it is cast in here, so that its gradient, a sum over tokens, is made in
    ``types.reduce_dtype`` before devices add theirs up and before anything rounds it (``Runtime.reduce_dtype``).
    """
    return _project(equation, on_matrix_units(precision), types or ProductTypes(), x, matrix)


def on_matrix_units(precision: Any) -> Any:
    """How a product of the highest precision is computed here: on a GPU as six products in bfloat16.

    Of three pieces of 8 bits each in both factors, it leaves out what is below float32's last bit, so it is as exact
    as float32 (``tests/kernels/test_linear.py``), for which NVIDIA's matrix units have no product. TPUs do so by
    themselves, and a CPU has float32.
    """
    if precision is lax.Precision.HIGHEST and gpu_generation() >= 8:
        return lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    return precision


def add_bias(x: Float[Array, "*tokens n"], bias: Float[Array, "*of_bias"]) -> Float[Array, "*tokens n"]:
    """x and a vector of every token, added in the vector's type: its gradient is a sum over tokens, and sums in
    bfloat16 stop growing after some hundreds of them."""
    return (x.astype(bias.dtype) + bias).astype(x.dtype)


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _project(equation: str, precision: Any, types: ProductTypes, x: Array, matrix: Array) -> Array:
    return _product(equation, precision, types, x, matrix.astype(x.dtype))


def _product(
    equation: str, precision: Any, types: ProductTypes, x: Array, matrix: Array, *, is_gradient: bool = False
) -> Array:
    if types.quantization == "none":
        return jnp.einsum(equation, x, matrix, precision=precision)
    return quantization.einsum(equation, x, matrix, types.quantization, precision, is_gradient=is_gradient)


def _save(
    equation: str, precision: Any, types: ProductTypes, x: Array, matrix: Array
) -> tuple[Array, tuple[Array, Array, Array]]:
    # The type of the master copy, without its numbers.
    cast, empty = matrix.astype(x.dtype), jnp.zeros((0,), matrix.dtype)
    return _product(equation, precision, types, x, cast), (x, cast, empty)


def _gradients(
    equation: str, precision: Any, types: ProductTypes, saved: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    """As JAX has them, but for the types."""
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
    equation: str, x: Float[Array, "*of_x"], dy: Float[Array, "*of_y"], *, precision: Any, dtype: Any
) -> Float[Array, "*of_matrix"]:
    """The gradient of a matrix, a sum over tokens: ``jnp.einsum(equation, x, dy)``, in a type."""
    return jnp.einsum(equation, x, dy, precision=precision, preferred_element_type=dtype)


def over_one_axis(
    equation: str, x: Float[Array, "*of_x"], dy: Float[Array, "*of_y"], *, precision: Any, dtype: Any
) -> Float[Array, "*of_matrix"]:
    """The same for a CPU, where a sum over two axes makes XLA write a transposed copy of an array as long as the
    tokens: all axes of tokens as one."""
    tokens = token_axes(equation)
    product = partial(jnp.einsum, "tx,ty->xy", precision=precision, preferred_element_type=dtype)
    dmatrix = product(*(a.reshape(math.prod(a.shape[:tokens]), -1) for a in (x, dy)))
    return dmatrix.reshape(*x.shape[tokens:], *dy.shape[tokens:])


def token_axes(equation: str) -> int:
    """How many axes of tokens the operands of a gradient have, which come first in both."""
    of_x, of_y = equation.split("->")[0].split(",")
    return sum(name in of_y for name in of_x)
