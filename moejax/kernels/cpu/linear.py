"""Compute weight gradients of linear maps on CPU cores: contract two arrays over tokens, without transposing them.

Shapes: N tokens, D inputs, F outputs.
"""

from __future__ import annotations

import math
from typing import Any, no_type_check

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from moejax.kernels.cpu.custom_call import argument, custom_call, floats2, floats3, kernel, result
from moejax.kernels.cpu.product import multiply
from moejax.kernels.linear import token_axes
from moejax.sharding import can_split, on_many_devices, over_tokens

KERNEL = "moejax_linear_gradient"
TOKENS = 1024
"""Number of tokens per part. Each part has its own sum, and there are at most ``MOST_PARTS``."""
MOST_PARTS = 8


@kernel(KERNEL)
@no_type_check
def _part(frame: int, part: int) -> int:
    x, dy, sums = floats2(argument(frame, 0)), floats2(argument(frame, 1)), floats3(result(frame, 0))
    tokens, wide = x.shape
    deep = dy.shape[1]
    parts = sums.shape[0]
    share = (tokens + parts - 1) // parts
    first = min(part * share, tokens)
    lengths = wide, deep, min(share, tokens - first)
    multiply(x[first:], dy[first:], sums[part], lengths, (wide, deep, deep), (True, False), False)
    return 0


def supports(equation: str, x: Array, dy: Array) -> bool:
    """Return whether every device holds whole matrices and equal numbers of sequences."""
    mesh = jax.sharding.get_abstract_mesh()
    whole = not on_many_devices() or mesh.shape["fsdp"] == mesh.shape["tensor"] == 1
    return whole and can_split(x.shape[0])


def linear_gradient(
    equation: str, x: Float[Array, "*of_x"], dy: Float[Array, "*of_y"], *, precision: lax.PrecisionLike, dtype: Any
) -> Float[Array, "*of_matrix"]:
    """Compute ``jnp.einsum(equation, x, dy)``: each device sums over its own tokens, then sums are added over
    devices."""
    tokens = token_axes(equation)

    def local(x: Array, dy: Array) -> Array:
        return _matrix_gradient(*(a.reshape(math.prod(a.shape[:tokens]), -1) for a in (x, dy)))

    dmatrix = over_tokens(local, (x, dy), summed=True)
    return dmatrix.reshape(*x.shape[tokens:], *dy.shape[tokens:])


def _matrix_gradient(x: Float[Array, "N D"], dy: Float[Array, "N F"]) -> Float[Array, "D F"]:
    parts = min(-(-x.shape[0] // TOKENS), MOST_PARTS)
    sums = jax.ShapeDtypeStruct((parts, x.shape[1], dy.shape[1]), jnp.float32)
    partial_sums = custom_call(KERNEL, parts, sums, x, dy)
    return partial_sums[0] if parts == 1 else partial_sums.sum(0)
