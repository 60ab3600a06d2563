"""Compute RMSNorm on CPU cores, reading each row from memory once.

Shapes: N rows, D width, P parts.
"""

from __future__ import annotations

from typing import no_type_check

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from moejax.kernels.cpu.arithmetic import ONE, ZERO, fill_vectors
from moejax.kernels.cpu.custom_call import argument, custom_call, floats1, floats2, kernel, result
from moejax.sharding import can_split, over_tokens

FORWARD, BACKWARD = "moejax_norm_forward", "moejax_norm_backward"
ROWS = 128
"""Number of rows per part."""


@kernel(FORWARD)
@no_type_check
def _forward_part(frame: int, part: int) -> int:
    """Compute normalized rows and each row's factor."""
    fill_vectors()
    x, weight, epsilon = floats2(argument(frame, 0)), floats1(argument(frame, 1)), floats1(argument(frame, 2))[0]
    y, scale = floats2(result(frame, 0)), floats1(result(frame, 1))
    width = x.shape[1]
    for n in range(part * ROWS, min(part * ROWS + ROWS, x.shape[0])):
        row, out, squares = x[n], y[n], ZERO
        for d in range(width):
            squares += row[d] * row[d]
        s = ONE / np.sqrt(squares / np.float32(width) + epsilon)
        scale[n] = s
        for d in range(width):
            out[d] = row[d] * s * weight[d]
    return 0


@kernel(BACKWARD)
@no_type_check
def _backward_part(frame: int, part: int) -> int:
    """Compute gradients of rows, and the part's contribution to the weight's gradient."""
    fill_vectors()
    x, weight, scale = floats2(argument(frame, 0)), floats1(argument(frame, 1)), floats1(argument(frame, 2))
    dy = floats2(argument(frame, 3))
    dx, dweights = floats2(result(frame, 0)), floats2(result(frame, 1))
    width, dweight = x.shape[1], dweights[part]
    dweight[:] = ZERO
    for n in range(part * ROWS, min(part * ROWS + ROWS, x.shape[0])):
        row, up, out, s, along = x[n], dy[n], dx[n], scale[n], ZERO
        for d in range(width):
            along += row[d] * up[d] * weight[d]
        # RMSNorm is scale-invariant, so the radial component of the gradient is projected out.
        along *= s * s / np.float32(width)
        for d in range(width):
            out[d] = s * (up[d] * weight[d] - along * row[d])
            dweight[d] += s * row[d] * up[d]
    return 0


def supports(x: Array, weight: Array, epsilon: float) -> bool:
    """Return whether x consists of sequences that can be divided equally among the devices that share tokens."""
    return x.ndim == 3 and can_split(x.shape[0])


def rms_norm(x: Float[Array, "B T D"], weight: Float[Array, " D"], epsilon: float) -> Float[Array, "B T D"]:
    """Divide each token by its root mean square and multiply by the weight, on each device's tokens."""

    def local(x: Array, weight: Array) -> Array:
        return _normalize(x.reshape(-1, x.shape[-1]), weight, jnp.full(1, epsilon, jnp.float32)).reshape(x.shape)

    return over_tokens(local, [x], [weight])


@jax.custom_vjp
def _normalize(x: Float[Array, "N D"], weight: Float[Array, " D"], epsilon: Float[Array, " 1"]) -> Float[Array, "N D"]:
    return _save(x, weight, epsilon)[0]


def _save(x: Array, weight: Array, epsilon: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    results = jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct(x.shape[:1], jnp.float32)
    y, scale = custom_call(FORWARD, _parts(x), results, x, weight, epsilon)
    return y, (x, weight, scale)


def _gradients(saved: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array, None]:
    x, weight, scale = saved
    parts = _parts(x)
    results = jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct((parts, x.shape[1]), jnp.float32)
    dx, dweights = custom_call(BACKWARD, parts, results, x, weight, scale, dy)
    return dx, dweights.sum(0), None


_normalize.defvjp(_save, _gradients)


def _parts(x: Float[Array, "N D"]) -> int:
    return -(-x.shape[0] // ROWS)
