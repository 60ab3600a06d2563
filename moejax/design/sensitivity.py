"""Compute the sensitivity of an optimum: prices of constraints, flat region, and dependence on law and budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from moejax.design.constraint import Constraint
from moejax.design.problem import Optimum, Problem, at_the_end, lanes_of, read, within_bounds
from moejax.design.solve import solve
from moejax.float64 import float64
from moejax.laws.law import Law

CHANGE = 0.02
"""E-folds by which a bound is moved to estimate its price."""
LOSS_CHANGE = 0.001
"""Nats by which a bound on the loss is moved to estimate its price."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a constraint."""

    constraint: Constraint
    multiplier: float
    """Change of the goal per e-fold of the bound (per nat for a loss bound), from the multiplier."""
    resolved: float
    """This change, estimated by solving again with a slightly larger and a slightly smaller bound."""


@dataclass(frozen=True, kw_only=True)
class Flat:
    """The range of a coordinate within which the loss rises by at most a given amount while other coordinates adapt."""

    name: str
    low: float
    high: float
    best: float
    ends: tuple[bool, bool]
    """For ``low`` and ``high``: True if a bound of the search or a constraint, not the loss, determines this end."""

    @property
    def is_wide(self) -> bool:
        """Return whether low and high differ by more than a factor of ten."""
        return self.high > 10 * self.low > 0


UNMOVED = 1e-6
"""Tolerance, in nats, within which losses are equal to the precision of the search."""


def solve_again(near: Sequence[Optimum], problems: Sequence[Problem]) -> list[Optimum | None]:
    """Solve problems of one program, each from a nearby optimum; None if a problem has no optimum."""
    left = [{c.name for c in o.problem.space.coordinates} & set(o.unidentified) for o in near]
    lanes = lanes_of(problems)
    points = np.stack([o.point for o in near])
    at_high = [c.starts_at_high for c in problems[0].space.coordinates]
    points[:, at_high] = lanes["high"][:, : len(at_high)][:, at_high]
    for lane, names in enumerate(left):
        for i, c in enumerate(problems[lane].space.coordinates):
            if c.name in names:
                lanes["low"][lane, i] = lanes["high"][lane, i] = points[lane, i]
    solved = solve(problems[0].program, points, lanes)
    optima = [replace(read(p, solved, i), unidentified=near[i].unidentified) for i, p in enumerate(problems)]
    return [one if solved.holds[i] else None for i, one in enumerate(optima)]


def within_the_search(optima: Sequence[Optimum | None]) -> list[Optimum | None]:
    """Return the optima, with None for optima at a bound of the search that is not a constraint."""
    return [None if one is None or at_the_end(one) else one for one in optima]


def prices(optimum: Optimum) -> list[Price]:
    """Return the prices of all binding constraints, the most expensive first, each verified by solving again."""
    problem, constraints = optimum.problem, optimum.problem.merged_constraints()
    binding = [constraints[name] for name in optimum.multipliers if name in constraints]
    if not binding:
        return []
    moved = [_moved(problem, constraint, side * CHANGE) for constraint in binding for side in (1, -1)]
    again = solve_again([optimum] * len(moved), moved)
    priced = []
    for i, constraint in enumerate(binding):
        more, less = again[2 * i], again[2 * i + 1]
        change = 2 * (LOSS_CHANGE if constraint.name == "loss" else CHANGE)
        goal = math.nan if more is None or less is None else (goal_of(more) - goal_of(less)) / change
        priced.append(Price(constraint=constraint, multiplier=-optimum.multipliers[constraint.name], resolved=goal))
    return sorted(priced, key=lambda price: -abs(price.multiplier))


def goal_of(optimum: Optimum) -> float:
    """Return the value of the minimized objective: a loss, -log of a leverage, or log of a cost."""
    problem = optimum.problem
    if problem.goal != "loss":
        return math.log(optimum.values[problem.goal])
    output = problem.program.output
    return optimum.values[output] if output == "loss" else -math.log(optimum.values[output])


def flat_region(optimum: Optimum, within: float = 0.001) -> list[Flat]:
    """Return the range of each coordinate within which the loss rises by at most ``within`` and all constraints hold.

    The other coordinates adapt. If the loss is a constraint, the log cost may rise by ``within`` instead.
    """
    problem = optimum.problem
    decided = [c for c in problem.space.coordinates if c.name not in optimum.unidentified]
    names = problem.program.names
    rise = goal_of(optimum) + within
    base = lanes_of([problem] * (2 * len(decided)))
    goal = names.index(problem.goal)
    base["high"][:, goal] = np.minimum(base["high"][:, goal], rise)
    base["weight"][:] = 0.0
    for i, c in enumerate(decided):
        base["weight"][2 * i, names.index(c.name)], base["weight"][2 * i + 1, names.index(c.name)] = 1.0, -1.0
    for i, c in enumerate(problem.space.coordinates):
        if c.name in optimum.unidentified:
            base["low"][:, i] = base["high"][:, i] = optimum.point[i]
    regions = []
    solved = solve(problem.program, np.tile(optimum.point, (2 * len(decided), 1)), base)
    fixed = {name: one.low for name, one in problem.merged_constraints().items() if one.low == one.high}
    for i, c in enumerate(decided):
        at = names.index(c.name)
        with float64():
            low, high = (
                within_bounds(problem, c, float(c.plain(solved.points[lane, at]))) if solved.holds[lane] else math.nan
                for lane in (2 * i, 2 * i + 1)
            )
        if c.name in fixed:
            low = high = fixed[c.name]
        ends = tuple(bool(abs(solved.multipliers[lane, goal]) < 1e-9) for lane in (2 * i, 2 * i + 1))
        regions.append(Flat(name=c.name, low=low, high=high, best=optimum.values[c.name], ends=(ends[0], ends[1])))
    return regions


def undecided(optimum: Optimum, flat: Sequence[Flat]) -> tuple[str, ...]:
    """Return the coordinates that can change by more than a factor of ten at the same loss while the others adapt.

    Args:
      flat: flat region for a larger rise of the loss.
    """
    if not any(one.is_wide for one in flat):
        return ()
    return tuple(one.name for one in flat_region(optimum, UNMOVED) if one.is_wide)


def under_laws(optimum: Optimum, laws: Law) -> list[Optimum | None]:
    """Return the optimum under every law of a stack, such as bootstrap laws; None for a law without an optimum."""
    count = len(jax.tree.leaves(laws)[0])
    each = [jax.tree.map(lambda leaf, i=i: float(leaf[i]), laws) for i in range(count)]
    return within_the_search(solve_again([optimum] * count, [replace(optimum.problem, law=law) for law in each]))


def along(optimum: Optimum, name: str, values: Sequence[float]) -> list[Optimum | None]:
    """Return the optima with an upper bound on ``name`` at each of several values."""
    problems = [_with(optimum.problem, Constraint(name=name, high=value)) for value in values]
    return within_the_search(solve_again([optimum] * len(values), problems))


def _moved(problem: Problem, constraint: Constraint, by: float) -> Problem:
    if constraint.name == "loss":
        moved = replace(constraint, high=constraint.high + by / CHANGE * LOSS_CHANGE)
    elif any(c.linear for c in problem.space.coordinates if c.name == constraint.name):
        moved = replace(constraint, low=constraint.low + by if constraint.low > 0 else 0.0, high=constraint.high + by)
    else:
        moved = replace(constraint, low=constraint.low * math.exp(by), high=constraint.high * math.exp(by))
    return _with(problem, moved)


def _with(problem: Problem, constraint: Constraint) -> Problem:
    others = tuple(one for one in problem.merged_constraints().values() if one.name != constraint.name)
    return replace(problem, constraints=(*others, constraint))
