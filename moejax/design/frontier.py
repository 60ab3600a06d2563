"""The optimum along a budget, with the dense model of the same budget beside it: whoever claims a gain must beat it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moejax.design.problem import Limit, Optimum, Problem, optimise
from moejax.design.sensitivity import along

POINTS_PER_DECADE = 2
DENSE = ("expansion", "expert_expansion")
"""What is 1 in a dense model."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """One budget."""

    budget: float
    best: Optimum | None
    """None where the law has no optimum."""
    dense: Optimum | None
    """The same with as many parameters as serve a token; None where the law knows dense models only."""


def frontier(problem: Problem, name: str, low: float, high: float) -> list[Point]:
    """The optimum at budgets from ``low`` to ``high``, half a decade apart or less.

    Raises:
      ValueError: as ``optimise``, at the middle budget.
    """
    count = max(2, round(np.log10(high / low) * POINTS_PER_DECADE) + 1)
    budgets = np.geomspace(low, high, count).tolist()
    best = _along(problem, name, budgets)
    chosen = [c.name for c in problem.space.coordinates if c.name in DENSE]
    dense: Sequence[Any] = [None] * count
    if chosen:
        held = Limit(name=chosen[0], low=1.0, high=1.0)
        others = tuple(limit for limit in problem.limits if limit.name != chosen[0])
        dense = _along(replace(problem, limits=(*others, held)), name, budgets)
    return [Point(budget=b, best=one, dense=two) for b, one, two in zip(budgets, best, dense, strict=True)]


def _along(problem: Problem, name: str, budgets: Sequence[float]) -> list[Optimum | None]:
    middle = budgets[len(budgets) // 2]
    limited = replace(problem, limits=(*problem.limits, Limit(name=name, high=middle)))
    return along(optimise(limited), name, budgets)
