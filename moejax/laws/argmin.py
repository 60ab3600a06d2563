"""Minimise a smooth function of one number between two bounds, in pure JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

CELLS = 512
BISECTIONS = 60


def argmin_between(function: Callable[[Any], Any], low: Any, high: Any) -> Any:
    """Return the minimiser of ``function`` in ``[low, high]``: a grid finds the valley, ``jax.grad`` bisects it.

    The grid may miss valleys narrower than 1/512 of the interval. A minimum at a bound is the bound itself. Inside, the
    result can be differentiated twice with respect to anything that the function closes over.
    """
    low, high = jnp.asarray(low, float), jnp.asarray(high, float)
    grid = low + (high - low) * jnp.linspace(0.0, 1.0, CELLS + 1)
    best = jnp.argmin(jax.vmap(function)(grid))
    slope = jax.grad(function)

    def halve(_: Any, bracket: Any) -> Any:
        left, right = bracket
        middle = (left + right) / 2
        rising = slope(middle) > 0
        return jnp.where(rising, left, middle), jnp.where(rising, middle, right)

    start = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, CELLS)]
    left, right = jax.lax.fori_loop(0, BISECTIONS, halve, start)
    inside = (left + right) / 2
    ends = jnp.stack([low, high])
    end = ends[jnp.argmin(jax.vmap(function)(ends))]
    return jnp.where(function(end) <= function(inside), end, _followed(slope, inside))


def _followed(slope: Callable[[Any], Any], argmin: Any) -> Any:
    """Return the same number with the derivatives of the root of ``slope``, because bisection has none.

    A Newton step from the root, held constant, applies the implicit function theorem; every step doubles the order of
    the derivatives.
    """
    still = jax.lax.stop_gradient(argmin)
    moved = still
    for _ in range(2):
        curvature = jax.grad(slope)(moved)
        moved = moved - jnp.where(curvature > 0, slope(moved) / jnp.where(curvature > 0, curvature, 1.0), 0.0)
    return still + (moved - jax.lax.stop_gradient(moved))
