"""Parameters: float32 arrays with a logical name per axis, initialised in the order in which the model makes them."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def parameter(rngs: nnx.Rngs, shape: dict[str, int], *, fan_in: int | None = None, scale: float = 1.0) -> nnx.Param:
    """A parameter whose dimensions are given by logical name, as ``{"layers": 4, "embed": 256, "hidden": 512}``.

    With ``fan_in`` the values are normal with standard deviation ``scale / sqrt(fan_in)``, cut at two of them;
    without, they are all ``scale``.
    """
    sizes = tuple(shape.values())
    if fan_in is None:
        value = jnp.full(sizes, scale, jnp.float32)
    else:
        deviation = scale / math.sqrt(fan_in)
        value = jax.random.truncated_normal(rngs.params(), -2.0, 2.0, sizes, jnp.float32) * deviation
    return nnx.Param(value, axes=tuple(shape))


def logical_axes(state: nnx.State) -> Any:
    """Logical axis names of every parameter, as a nested dict of tuples in the shape of the parameters."""
    named = jax.tree.map(
        lambda variable: variable.get_metadata()["axes"], state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    return nnx.to_pure_dict(named)
