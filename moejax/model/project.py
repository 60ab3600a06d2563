"""Linear maps between what tokens are and their heads."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from moejax.target import platform


def project(equation: str, x: Float[Array, "B T *of_token"], matrix: Float[Array, "*axes"]) -> Float[Array, "B T *to"]:
    """``jnp.einsum(equation, x, matrix)``."""
    # XLA's CPU compiler writes down the transpose of what stands first in a product over tokens. The transpose of x
    # serves all maps of x; JAX's own rule would have that of each map's gradient.
    return _x_first(equation, x, matrix) if platform() == "cpu" else jnp.einsum(equation, x, matrix)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _x_first(equation: str, x: Array, matrix: Array) -> Array:
    return jnp.einsum(equation, x, matrix)


def _save(equation: str, x: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return jnp.einsum(equation, x, matrix), (x, matrix)


def _gradients(equation: str, saved: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, matrix = saved
    of_inputs, of_y = equation.split("->")
    of_x, of_matrix = of_inputs.split(",")
    dx = jnp.einsum(f"{of_y},{of_matrix}->{of_x}", dy, matrix)
    flat = (a.reshape(x.shape[0] * x.shape[1], -1) for a in (x, dy))
    return dx, jnp.einsum("tx,ty->xy", *flat).reshape(matrix.shape)


_x_first.defvjp(_save, _gradients)
