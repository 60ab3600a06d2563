"""Compute optima over budgets, compared with two dense models, and over two coordinates (a landscape).

One dense model is the best for the same budget. The other has the optimum's total parameters, all active, so the same
FLOPs buy fewer tokens: at equal N and C, the MoE model has N / N_a times the tokens of this dense model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moejax.config import unknown
from moejax.design.constraint import Constraint, held
from moejax.design.coordinates import EXPANSIONS, Sizes
from moejax.design.problem import Optimum, Problem, optimize
from moejax.design.sensitivity import along, solve_again, within_the_search
from moejax.errors import UserError
from moejax.float64 import float64

POINTS_PER_DECADE = 2
LANDSCAPE = 9
"""Number of values per coordinate of a landscape."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Results for one budget."""

    budget: float
    best: Optimum | None
    """Optimum; None if the law has no optimum."""
    dense: Optimum | None
    """Best dense model; None if the law only describes dense models."""
    equal: EqualDense | None = None
    """Dense model of equal size and compute; None if the law does not distinguish total and active parameters."""


@dataclass(frozen=True, kw_only=True)
class EqualDense:
    """Dense model with an optimum's total parameters and training FLOPs."""

    tokens: float
    loss: float
    token_multiplier: float
    """Tokens of the optimum per token of the dense model, about total / active parameters."""


def frontier(problem: Problem, name: str, low: float, high: float) -> list[Point]:
    """Return the optima at budgets from ``low`` to ``high``, about half a decade apart.

    Raises:
      UserError: the problem has no optimum at the middle budget.
    """
    count = max(2, round(np.log10(high / low) * POINTS_PER_DECADE) + 1)
    budgets = np.geomspace(low, high, count).tolist()
    best = _along(problem, name, budgets)
    chosen = [c.name for c in problem.space.coordinates if c.name in EXPANSIONS]
    dense: Sequence[Any] = [None] * count
    if chosen:
        others = tuple(constraint for constraint in problem.constraints if constraint.name != chosen[0])
        dense = _along(replace(problem, constraints=(*others, *held({chosen[0]: 1.0}))), name, budgets)
    return [
        Point(budget=b, best=one, dense=two, equal=None if one is None else equal_dense(one))
        for b, one, two in zip(budgets, best, dense, strict=True)
    ]


def equal_dense(optimum: Optimum) -> EqualDense | None:
    """Return the dense model with an optimum's total parameters and FLOPs; None if these are not distinguished."""
    problem, values = optimum.problem, dict(optimum.values)
    chosen = {c.name for c in problem.space.coordinates}
    if not isinstance(problem.space, Sizes) or not {"params_active", "tokens"} <= chosen:
        return None
    one = next((name for name in EXPANSIONS if name in chosen), None)
    if one is None or problem.program.output != "loss":
        return None
    times = values[one]
    dense = {**values, "params_active": values["params_active"] * times, "tokens": values["tokens"] / times, one: 1.0}
    with float64():
        loss = float(problem.law(problem.space.candidate(dense).design))
    return EqualDense(tokens=dense["tokens"], loss=loss, token_multiplier=times)


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """Optima as a function of two fixed coordinates."""

    names: tuple[str, str]
    values: tuple[Sequence[float], Sequence[float]]
    goal: str
    optima: Sequence[Sequence[Optimum | None]]
    """Optima by the first and then the second coordinate; None if there is no optimum."""

    @property
    def heights(self) -> np.ndarray:
        """Return the values of the goal; NaN where there is no optimum."""
        return np.asarray([[np.nan if o is None else o.values[self.goal] for o in row] for row in self.optima])


def landscape(
    problem: Problem, first: tuple[str, float, float], second: tuple[str, float, float], count: int = LANDSCAPE
) -> Landscape:
    """Return the optima at ``count`` by ``count`` values of two coordinates, evenly spaced in their logarithms.

    Raises:
      UserError: a name is not a coordinate, or the problem has no optimum at the middle of both ranges.
    """
    coordinates = [c.name for c in problem.space.coordinates]
    for name, *_ in (first, second):
        if name not in coordinates:
            raise UserError(unknown(f"a landscape over {name}", name, coordinates))
    names, values = (first[0], second[0]), [np.geomspace(*ends[1:], count).tolist() for ends in (first, second)]

    def at(pair: Sequence[float]) -> Problem:
        others = [constraint for constraint in problem.constraints if constraint.name not in names]
        return replace(problem, constraints=(*others, *held(dict(zip(names, pair, strict=True)))))

    middle = optimize(at((values[0][count // 2], values[1][count // 2])))
    pairs = list(itertools.product(*values))
    near = []
    for pair in pairs:
        point = middle.point.copy()
        for name, value in zip(names, pair, strict=True):
            number = coordinates.index(name)
            point[number] = problem.space.coordinates[number].scaled(value)
        near.append(replace(middle, point=point))
    optima = within_the_search(solve_again(near, [at(pair) for pair in pairs]))
    return Landscape(
        names=names,
        values=(values[0], values[1]),
        goal=problem.program.output,
        optima=[optima[i * count : (i + 1) * count] for i in range(count)],
    )


def _along(problem: Problem, name: str, budgets: Sequence[float]) -> list[Optimum | None]:
    middle = budgets[len(budgets) // 2]
    constrained = replace(problem, constraints=(*problem.constraints, Constraint(name=name, high=middle)))
    return along(optimize(constrained), name, budgets)
