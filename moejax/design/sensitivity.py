"""What surrounds an optimum: what limits are worth, how flat it is, and where it moves with law and budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from moejax.design.problem import Limit, Optimum, Problem, at_the_end, lanes_of, read
from moejax.design.solve import solve

CHANGE = 0.02
"""E-folds by which a limit is moved to see what it is worth."""
LOSS_CHANGE = 0.001
"""The same in nats, where the limit is the loss."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """What a limit is worth."""

    limit: Limit
    multiplier: float
    """Change of the goal per e-fold (of the loss: per nat) by which the limit grows, from its multiplier."""
    resolved: float
    """The same from solving again with the limit a little larger and a little smaller."""


@dataclass(frozen=True, kw_only=True)
class Flat:
    """How far a coordinate may move while the rest adapts and the loss rises by no more than stated."""

    name: str
    low: float
    high: float
    best: float
    ends: tuple[bool, bool]
    """Whether low and high are where the search or a limit ends, not where the loss has risen."""


def solve_again(near: Sequence[Optimum], problems: Sequence[Problem]) -> list[Optimum | None]:
    """Problems of one program, each from an optimum near it; None where there is no optimum."""
    left = [{c.name for c in o.problem.space.coordinates} & set(o.undecided) for o in near]
    lanes = lanes_of(problems)
    points = np.stack([o.point for o in near])
    whole = [c.whole for c in problems[0].space.coordinates]
    points[:, whole] = lanes["high"][:, : len(whole)][:, whole]
    for lane, names in enumerate(left):
        for i, c in enumerate(problems[lane].space.coordinates):
            if c.name in names:
                lanes["low"][lane, i] = lanes["high"][lane, i] = points[lane, i]
    solved = solve(problems[0].program, points, lanes)
    found = [replace(read(p, solved, i), undecided=near[i].undecided) for i, p in enumerate(problems)]
    return [one if solved.holds[i] else None for i, one in enumerate(found)]


def prices(optimum: Optimum) -> list[Price]:
    """Every limit that binds, dearest first, with its price checked by solving again."""
    problem, limits = optimum.problem, optimum.problem.together()
    binding = [limits[name] for name in optimum.multipliers if name in limits]
    if not binding:
        return []
    moved = [_moved(problem, limit, side * CHANGE) for limit in binding for side in (1, -1)]
    again = solve_again([optimum] * len(moved), moved)
    found = []
    for i, limit in enumerate(binding):
        more, less = again[2 * i], again[2 * i + 1]
        change = 2 * (LOSS_CHANGE if limit.name == "loss" else CHANGE)
        goal = math.nan if more is None or less is None else (goal_of(more) - goal_of(less)) / change
        found.append(Price(limit=limit, multiplier=-optimum.multipliers[limit.name], resolved=goal))
    return sorted(found, key=lambda price: -abs(price.multiplier))


def goal_of(optimum: Optimum) -> float:
    """What was minimised, as it was: a loss, minus the logarithm of a leverage, or the logarithm of a cost."""
    problem = optimum.problem
    if problem.goal != "loss":
        return math.log(optimum.values[problem.goal])
    output = problem.program.output
    return optimum.values[output] if output == "loss" else -math.log(optimum.values[output])


def flat_region(optimum: Optimum, within: float = 0.001) -> list[Flat]:
    """How far every coordinate may move, one at a time, within a rise of the loss and all limits.

    The other coordinates adapt. With the loss as a limit, the cost may rise by that share instead.
    """
    problem = optimum.problem
    decided = [c for c in problem.space.coordinates if c.name not in optimum.undecided]
    names = problem.program.names
    rise = goal_of(optimum) + within
    base = lanes_of([problem] * (2 * len(decided)))
    goal = names.index(problem.goal)
    base["high"][:, goal] = np.minimum(base["high"][:, goal], rise)
    base["weight"][:] = 0.0
    for i, c in enumerate(decided):
        base["weight"][2 * i, names.index(c.name)], base["weight"][2 * i + 1, names.index(c.name)] = 1.0, -1.0
    for i, c in enumerate(problem.space.coordinates):
        if c.name in optimum.undecided:
            base["low"][:, i] = base["high"][:, i] = optimum.point[i]
    found = []
    solved = solve(problem.program, np.tile(optimum.point, (2 * len(decided), 1)), base)
    for i, c in enumerate(decided):
        at = names.index(c.name)
        with jax.enable_x64(True):
            low, high = (
                float(c.plain(solved.points[lane, at])) if solved.holds[lane] else math.nan
                for lane in (2 * i, 2 * i + 1)
            )
        # Where the end is 0, rounding goes a hair below it.
        low = max(low, c.low) if low == low else low
        ends = tuple(bool(abs(solved.multipliers[lane, goal]) < 1e-9) for lane in (2 * i, 2 * i + 1))
        found.append(Flat(name=c.name, low=low, high=high, best=optimum.values[c.name], ends=(ends[0], ends[1])))
    return found


def under_laws(optimum: Optimum, laws: Any) -> list[Optimum | None]:
    """The optimum under every law of a stack (as a bootstrap has); None where a law has none."""
    count = len(jax.tree.leaves(laws)[0])
    each = [jax.tree.map(lambda leaf, i=i: float(leaf[i]), laws) for i in range(count)]
    found = solve_again([optimum] * count, [replace(optimum.problem, law=law) for law in each])
    return [None if one is None or at_the_end(one) else one for one in found]


def along(optimum: Optimum, name: str, values: Sequence[float]) -> list[Optimum | None]:
    """The optimum with an upper limit at every value in turn, each from its neighbour's."""
    problems = [_with(optimum.problem, Limit(name=name, high=value)) for value in values]
    found = solve_again([optimum] * len(values), problems)
    return [None if one is None or at_the_end(one) else one for one in found]


def _moved(problem: Problem, limit: Limit, by: float) -> Problem:
    if limit.name == "loss":
        moved = replace(limit, high=limit.high + by / CHANGE * LOSS_CHANGE)
    elif any(c.linear for c in problem.space.coordinates if c.name == limit.name):
        moved = replace(limit, low=limit.low + by if limit.low > 0 else 0.0, high=limit.high + by)
    else:
        moved = replace(limit, low=limit.low * math.exp(by), high=limit.high * math.exp(by))
    return _with(problem, moved)


def _with(problem: Problem, limit: Limit) -> Problem:
    others = tuple(one for one in problem.together().values() if one.name != limit.name)
    return replace(problem, limits=(*others, limit))
