"""The split of a budget between two numbers at which something is least, by any formula of costs, in pure JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

REACH = 16.0
"""E-folds that a split is searched on either side of an equal one: a factor of 9 million."""
POINTS, ROUNDS = 65, 8
"""Points of a grid around the best point so far, and how often it is made finer."""
BISECTIONS = 60
PAID = 1e-6
"""The share of a budget by which what a split costs may differ from it."""
LONGEST = 1e-3
"""The longest last step, in e-folds: the search ends nearer, but where a kink leaves no slope to follow."""

Function = Callable[[Any, Mapping[str, Any]], Any]
"""A function of a law and of the two numbers by name."""


def best_split(law: Any, objective: Function, cost: Function, budget: Any, names: tuple[str, str]) -> dict[str, Any]:
    """The two numbers above 0 of least objective among those that cost a budget; NaN if there is none in reach.

    It can be differentiated twice in the law's coefficients and in the budget.

    Args:
      cost: rises with both numbers.
      names: of the numbers.
    """
    asked = jnp.log(jnp.asarray(budget, float))
    still_law, still_asked = jax.lax.stop_gradient((law, asked))

    def numbers(point: Any) -> dict[str, Any]:
        return {name: jnp.exp(point[i]) for i, name in enumerate(names)}

    def over(point: Any, law: Any, asked: Any) -> Any:
        return jnp.log(cost(law, numbers(point))) - asked

    def paid(offset: Any, middle: Any) -> Any:
        """The point with the first number so far from the middle that costs the budget."""
        first = middle + offset
        rest = _root(lambda y: over(jnp.stack([first, y]), still_law, still_asked), middle, 4 * REACH)
        return jnp.stack([first, rest])

    def value(offset: Any, middle: Any) -> Any:
        point = paid(offset, middle)
        found = objective(still_law, numbers(point))
        fits = (jnp.abs(over(point, still_law, still_asked)) < PAID) & jnp.isfinite(found)
        return jnp.where(fits, found, jnp.inf)

    def nearer(_: Any, around: Any) -> Any:
        best, width = around
        offsets = jnp.clip(best + width * jnp.linspace(-1.0, 1.0, POINTS), -REACH, REACH)
        found = jax.vmap(lambda offset: value(offset, middle))(offsets)
        return offsets[jnp.argmin(found)], 4 * width / POINTS

    middle = _root(lambda both: over(jnp.stack([both, both]), still_law, still_asked), 0.0, 8 * REACH)
    start = jnp.asarray(0.0, float), jnp.asarray(REACH, float)
    offset, _ = jax.lax.fori_loop(0, ROUNDS, nearer, start)
    inside = (jnp.abs(offset) < REACH) & jnp.isfinite(value(offset, middle))
    best = jax.lax.stop_gradient(paid(offset, middle))

    def conditions(point: Any) -> Any:
        """What is 0 at the best split: the slope along the budget, and what is over."""
        slope, dear = (
            jax.grad(lambda at: objective(law, numbers(at)))(point),
            jax.grad(lambda at: over(at, law, asked))(point),
        )
        return jnp.stack([slope[0] * dear[1] - slope[1] * dear[0], over(point, law, asked)])

    # Newton steps from a point held still are the implicit function theorem; every one doubles the derivatives' order.
    for _ in range(2):
        (a, b), (c, d) = jax.jacfwd(conditions)(best)
        one, other = conditions(best)
        scale = a * d - b * c
        step = jnp.stack([d * one - b * other, a * other - c * one]) / jnp.where(scale == 0, 1.0, scale)
        best = best - jnp.where((jnp.abs(step) < LONGEST).all() & (scale != 0), step, 0.0)
    return {name: jnp.where(inside, number, jnp.nan) for name, number in numbers(best).items()}


def _root(rising: Callable[[Any], Any], middle: Any, reach: float) -> Any:
    """Where a rising function is 0, so far from a middle at most."""

    def halve(_: Any, bracket: Any) -> Any:
        left, right = bracket
        between = (left + right) / 2
        above = rising(between) > 0
        return jnp.where(above, left, between), jnp.where(above, between, right)

    middle = jnp.asarray(middle, float)
    left, right = jax.lax.fori_loop(0, BISECTIONS, halve, (middle - reach, middle + reach))
    return (left + right) / 2
