"""Linear maps of what tokens are: projections of attention and of dense layers, and the router."""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.model.sharding import can_split, on_many_devices, over_tokens
from moejax.native import can_hold
from moejax.target import platform


def project(
    equation: str,
    x: Float[Array, "*of_x"],
    matrix: Float[Array, "*of_matrix"],
    precision: Any = None,
    sums: str = "float32",
) -> Float[Array, "*of_y"]:
    """``jnp.einsum(equation, x, matrix)`` in the type of x, where what x and the result have in common comes first in
    both.

    The matrix is the master copy: it is cast in here, so that its gradient, a sum over tokens, is made in ``sums``
    before devices add theirs up and before anything rounds it (``Runtime.reduce_dtype``).
    """
    return _tokens_first(equation, precision, sums, x, matrix)


def add_bias(x: Float[Array, "*tokens n"], bias: Float[Array, "*of_bias"]) -> Float[Array, "*tokens n"]:
    """x and a vector of every token, added in the vector's type: its gradient is a sum over tokens, and sums in
    bfloat16 stop growing after some hundreds of them."""
    return (x.astype(bias.dtype) + bias).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _tokens_first(equation: str, precision: Any, sums: str, x: Array, matrix: Array) -> Array:
    return jnp.einsum(equation, x, matrix.astype(x.dtype), precision=precision)


def _save(equation: str, precision: Any, sums: str, x: Array, matrix: Array) -> tuple[Array, tuple[Array, ...]]:
    # The type of the master copy, without its numbers.
    cast, empty = matrix.astype(x.dtype), jnp.zeros((0,), matrix.dtype)
    return jnp.einsum(equation, x, cast, precision=precision), (x, cast, empty)


def _gradients(
    equation: str, precision: Any, sums: str, saved: tuple[Array, Array, Array], dy: Array
) -> tuple[Array, Array]:
    """As JAX has them, but for the type of the matrix's; and on a CPU that one sums over one axis of tokens: over two,
    or with arrays in another order, XLA writes down a transpose of an array as long as the tokens."""
    x, matrix, master = saved
    of_inputs, of_y = equation.split("->")
    of_x, of_matrix = of_inputs.split(",")
    dx = jnp.einsum(f"{of_y},{of_matrix}->{of_x}", dy, matrix, precision=precision)
    dtype = max(x.dtype, jnp.dtype(sums), key=lambda one: one.itemsize)
    if platform() != "cpu":
        found = jnp.einsum(f"{of_x},{of_y}->{of_matrix}", x, dy, precision=precision, preferred_element_type=dtype)
        return dx, found.astype(master.dtype)
    axes = sum(name in of_y for name in of_x)
    product = partial(jnp.einsum, "tx,ty->xy", precision=precision, preferred_element_type=dtype)

    def of_tokens(x: Array, dy: Array) -> Array:
        return product(*(a.reshape(math.prod(a.shape[:axes]), -1) for a in (x, dy)))

    if can_hold(x, dy) and _whole_matrices() and can_split(x.shape[0]):
        product = importlib.import_module("moejax.model.project_native").matrix_gradient
        return dx, over_tokens(of_tokens, (x, dy), summed=True).reshape(matrix.shape)
    return dx, of_tokens(x, dy).reshape(matrix.shape).astype(master.dtype)


_tokens_first.defvjp(_save, _gradients)


def _whole_matrices() -> bool:
    """Whether every device holds all of a matrix."""
    mesh = jax.sharding.get_abstract_mesh()
    return not on_many_devices() or mesh.shape["fsdp"] == mesh.shape["tensor"] == 1
