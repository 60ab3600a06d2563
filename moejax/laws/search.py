"""Minimize smooth functions in pure JAX: of one number between two bounds, or of two numbers at a fixed cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from moejax.laws.design import Scalar
from moejax.laws.law import Law

CELLS = 512
BISECTIONS = 60


def argmin_between(function: Callable[[Any], Any], low: Scalar, high: Scalar) -> Any:
    """Return the minimizer of ``function`` in ``[low, high]`` by a grid search, then bisection on ``jax.grad``.

    The grid may miss valleys narrower than 1/512 of the interval. If the minimum is at a bound, the result is exactly
    this bound. Inside the interval, the result can be differentiated twice with respect to anything that the function
    closes over.
    """
    low, high = jnp.asarray(low, float), jnp.asarray(high, float)
    grid = low + (high - low) * jnp.linspace(0.0, 1.0, CELLS + 1)
    best = jnp.argmin(jax.vmap(function)(grid))
    slope = jax.grad(function)

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
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


def _followed(slope: Callable[[Any], Any], argmin: Array) -> Array:
    """Return ``argmin`` with the derivatives of the root of ``slope``, because bisection has no derivatives.

    A Newton step from the constant root applies the implicit function theorem; every step doubles the order of correct
    derivatives.
    """
    still = jax.lax.stop_gradient(argmin)
    moved = still
    for _ in range(2):
        curvature = jax.grad(slope)(moved)
        moved = moved - jnp.where(curvature > 0, slope(moved) / jnp.where(curvature > 0, curvature, 1.0), 0.0)
    return still + (moved - jax.lax.stop_gradient(moved))


REACH = 16.0
"""Search range in e-folds on either side of an equal split: a factor of 9 million."""
POINTS, ROUNDS = 65, 8
"""Points of a grid around the best point so far, and number of refinements."""
OFFSETS = np.linspace(-REACH, REACH, POINTS)
FLAT = 1e-9
"""Minimum relative difference between the objectives of splits; below it, no split is best."""
PAID = 1e-6
"""Maximum relative difference between the cost of a split and the budget."""
LONGEST = 1e-3
"""Maximum Newton step in e-folds. The grid search ends within this distance, except at a kink without a slope."""

Function = Callable[[Law, Mapping[str, Any]], Any]
"""A function of a law and a mapping of the two numbers by name."""


def best_split(law: Law, objective: Function, cost: Function, budget: Scalar, names: tuple[str, str]) -> dict[str, Any]:
    """Return the two positive numbers that minimize the objective at a given cost, keyed by ``names``.

    They are NaN without a minimum in the search range.
    The result can be differentiated twice in the law's coefficients and in the budget.

    Args:
      cost: cost function, increasing in both numbers.
      names: names of the numbers.
    """
    asked = jnp.log(jnp.asarray(budget, float))
    moving = _Split(law, objective, cost, asked, names)
    still = replace(moving, law=jax.lax.stop_gradient(law), asked=jax.lax.stop_gradient(asked))
    middle = still.middle()

    every = still.values_of_all(middle)
    least = jnp.min(every)
    most = jnp.max(jnp.where(jnp.isfinite(every), every, least))
    differ = most - least > FLAT * jnp.abs(least)

    def nearer(_: Array, around: tuple[Array, Array]) -> tuple[Array, Array]:
        best, width = around
        offsets = jnp.clip(best + width * jnp.linspace(-1.0, 1.0, POINTS), -REACH, REACH)
        values = jax.vmap(lambda offset: still.value(offset, middle))(offsets)
        return offsets[jnp.argmin(values)], 4 * width / POINTS

    start = jnp.asarray(0.0, float), jnp.asarray(REACH, float)
    offset, _ = jax.lax.fori_loop(0, ROUNDS, nearer, start)
    inside = (jnp.abs(offset) < REACH) & jnp.isfinite(still.value(offset, middle)) & differ
    best = jax.lax.stop_gradient(still.paid(offset, middle))
    # Newton steps from a constant point apply the implicit function theorem; every step doubles the order of correct
    # derivatives.
    for _ in range(2):
        (a, b), (c, d) = jax.jacfwd(moving.conditions)(best)
        one, other = moving.conditions(best)
        scale = a * d - b * c
        step = jnp.stack([d * one - b * other, a * other - c * one]) / jnp.where(scale == 0, 1.0, scale)
        best = best - jnp.where((jnp.abs(step) < LONGEST).all() & (scale != 0), step, 0.0)
    return {name: jnp.where(inside, number, jnp.nan) for name, number in moving.numbers(best).items()}


def why_no_split(law: Law, objective: Function, cost: Function, budget: Scalar, names: tuple[str, str]) -> str:
    """Return the reason why ``best_split`` returns NaN, as the end of a sentence."""
    split = _Split(law, objective, cost, jnp.log(jnp.asarray(budget, float)), names)
    middle = split.middle()
    values = split.values_of_all(middle)
    finite = values[jnp.isfinite(values)]
    if not finite.size:
        return f"no {names[0]} and {names[1]} that cost {float(budget):g} have a finite value under the law"
    if float(finite.max() - finite.min()) <= FLAT * abs(float(finite.min())):
        return f"no split of the budget is best: the law gives {float(finite.min()):.4g} for all of them"
    end = split.numbers(split.paid(OFFSETS[jnp.argmin(values)], middle))
    there = " and ".join(f"{name} = {float(number):.3g}" for name, number in end.items())
    return f"no split of the budget is best: the law still decreases at the end of the search range, at {there}"


@dataclass(frozen=True)
class _Split:
    """A split problem, with points as logarithms of the two numbers."""

    law: Law
    objective: Function
    cost: Function
    asked: Array
    """Logarithm of the budget."""
    names: tuple[str, str]

    def numbers(self, point: Array) -> dict[str, Any]:
        return {name: jnp.exp(point[i]) for i, name in enumerate(self.names)}

    def over(self, point: Array) -> Any:
        """Return the excess cost of a point over the budget, in e-folds."""
        return jnp.log(self.cost(self.law, self.numbers(point))) - self.asked

    def middle(self) -> Any:
        """Return the point of two equal numbers that cost the budget."""
        return _root(lambda both: self.over(jnp.stack([both, both])), 0.0, 8 * REACH)

    def paid(self, offset: Scalar, middle: Scalar) -> Any:
        """Return the point that costs the budget and whose first coordinate is ``middle + offset``."""
        first = middle + offset
        return jnp.stack([first, _root(lambda y: self.over(jnp.stack([first, y])), middle, 4 * REACH)])

    def value(self, offset: Scalar, middle: Scalar) -> Any:
        """Return the objective at an offset from the middle; infinite if no point there costs the budget."""
        point = self.paid(offset, middle)
        value = self.objective(self.law, self.numbers(point))
        fits = (jnp.abs(self.over(point)) < PAID) & jnp.isfinite(value)
        return jnp.where(fits, value, jnp.inf)

    def values_of_all(self, middle: Scalar) -> Any:
        """Return the objective at all splits of the search range."""
        return jax.vmap(lambda offset: self.value(offset, middle))(OFFSETS)

    def conditions(self, point: Array) -> Any:
        """Return the residuals of the optimality conditions: the slope along the budget, and the excess cost."""
        slope = jax.grad(lambda at: self.objective(self.law, self.numbers(at)))(point)
        dear = jax.grad(self.over)(point)
        return jnp.stack([slope[0] * dear[1] - slope[1] * dear[0], self.over(point)])


def _root(rising: Callable[[Any], Any], middle: Scalar, reach: float) -> Any:
    """Return the root of a rising function within ``reach`` of ``middle``."""

    def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = bracket
        between = (left + right) / 2
        above = rising(between) > 0
        return jnp.where(above, left, between), jnp.where(above, between, right)

    middle = jnp.asarray(middle, float)
    left, right = jax.lax.fori_loop(0, BISECTIONS, halve, (middle - reach, middle + reach))
    return (left + right) / 2
