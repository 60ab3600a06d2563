"""Linear maps of what tokens are: projections of attention, and the router."""

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
    equation: str, x: Float[Array, "*of_x"], matrix: Float[Array, "*of_matrix"], precision: Any = None
) -> Float[Array, "*of_y"]:
    """``jnp.einsum(equation, x, matrix)``, where what x and the result have in common comes first in both."""
    if platform() == "cpu":
        return _tokens_first(equation, precision, x, matrix)
    return jnp.einsum(equation, x, matrix, precision=precision)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _tokens_first(equation: str, precision: Any, x: Array, matrix: Array) -> Array:
    return jnp.einsum(equation, x, matrix, precision=precision)


def _save(equation: str, precision: Any, x: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return _tokens_first(equation, precision, x, matrix), (x, matrix)


def _gradients(equation: str, precision: Any, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    """As JAX has them, but that the matrix's sums over one axis of tokens: over two, or with arrays in another order,
    XLA's CPU compiler writes down a transpose of an array as long as the tokens."""
    x, matrix = saved
    of_inputs, of_y = equation.split("->")
    of_x, of_matrix = of_inputs.split(",")
    dx = jnp.einsum(f"{of_y},{of_matrix}->{of_x}", dy, matrix, precision=precision)
    axes = sum(name in of_y for name in of_x)
    product = partial(jnp.einsum, "tx,ty->xy", precision=precision)

    def of_tokens(x: Array, dy: Array) -> Array:
        return product(*(a.reshape(math.prod(a.shape[:axes]), -1) for a in (x, dy)))

    if can_hold(x, dy) and _whole_matrices() and can_split(x.shape[0]):
        product = importlib.import_module("moejax.model.project_native").matrix_gradient
        return dx, over_tokens(of_tokens, (x, dy), summed=True).reshape(matrix.shape)
    return dx, of_tokens(x, dy).reshape(matrix.shape)


_tokens_first.defvjp(_save, _gradients)


def _whole_matrices() -> bool:
    """Whether every device holds all of a matrix."""
    mesh = jax.sharding.get_abstract_mesh()
    return not on_many_devices() or mesh.shape["fsdp"] == mesh.shape["tensor"] == 1
