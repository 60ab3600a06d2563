"""An optimum that may repeat tokens, beside the two answers of those who count no repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moejax.design.constraint import Constraint
from moejax.design.coordinates import UNIQUE_TOKENS
from moejax.design.problem import Optimum, Problem, optimise
from moejax.float64 import float64


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """What repeating tokens is worth under a law that has a price for it."""

    unique_tokens: float
    """As many as the constraints let there be."""
    once: Optimum | None
    """Where no token may be seen twice; None if nothing keeps that and the other constraints."""
    endless: Optimum | None
    """As if there were different tokens without end."""
    endless_epochs: float | None = None
    """Passes over the unique tokens there are, if that is trained on them; None where the loss is not the goal."""
    endless_loss: float | None = None
    """The loss it then reaches."""


def repeats(optimum: Optimum) -> Repeats | None:
    """Both answers; None for a problem in which unique tokens are not chosen or not constrained."""
    problem = optimum.problem
    constraint = problem.merged_constraints().get(UNIQUE_TOKENS.name)
    if constraint is None or UNIQUE_TOKENS.name not in (c.name for c in problem.space.coordinates):
        return None
    others = tuple(one for one in problem.constraints if one.name != UNIQUE_TOKENS.name)
    once = _optimum(
        replace(problem, constraints=(*problem.constraints, Constraint(name="tokens", high=constraint.high)))
    )
    endless = _optimum(
        replace(problem, constraints=(*others, Constraint(name=UNIQUE_TOKENS.name, high=UNIQUE_TOKENS.high)))
    )
    result = Repeats(unique_tokens=constraint.high, once=once, endless=endless)
    if endless is None or problem.goal != "loss":
        return result
    here = problem.space.candidate({**endless.values, UNIQUE_TOKENS.name: constraint.high})
    with float64():
        return replace(result, endless_epochs=float(here.epochs), endless_loss=float(problem.law(here.design)))


def _optimum(problem: Problem) -> Optimum | None:
    try:
        return optimise(problem)
    except ValueError:
        return None
