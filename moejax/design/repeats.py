"""An optimum that may repeat tokens, beside the two answers of those who count no repeats."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from moejax.design.coordinates import UNIQUE_TOKENS
from moejax.design.problem import Limit, Optimum, Problem, optimise


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """What repeating tokens is worth under a law that has a price for it."""

    unique_tokens: float
    """As many as the limits let there be."""
    once: Optimum | None
    """Where no token may be seen twice; None if nothing keeps that and the other limits."""
    endless: Optimum | None
    """As if there were different tokens without end."""
    endless_epochs: float | None = None
    """Passes over the unique tokens there are, if that is trained on them; None where the loss is not the goal."""
    endless_loss: float | None = None
    """The loss it then reaches."""


def repeats(optimum: Optimum) -> Repeats | None:
    """Both answers; None for a problem in which unique tokens are not chosen or not limited."""
    problem = optimum.problem
    limit = problem.together().get(UNIQUE_TOKENS.name)
    if limit is None or UNIQUE_TOKENS.name not in (c.name for c in problem.space.coordinates):
        return None
    others = tuple(one for one in problem.limits if one.name != UNIQUE_TOKENS.name)
    once = _optimum(replace(problem, limits=(*problem.limits, Limit(name="tokens", high=limit.high))))
    endless = _optimum(replace(problem, limits=(*others, Limit(name=UNIQUE_TOKENS.name, high=UNIQUE_TOKENS.high))))
    found = Repeats(unique_tokens=limit.high, once=once, endless=endless)
    if endless is None or problem.goal != "loss":
        return found
    here = problem.space.candidate({**endless.values, UNIQUE_TOKENS.name: limit.high})
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return replace(found, endless_epochs=float(here.epochs), endless_loss=float(problem.law(here.design)))


def _optimum(problem: Problem) -> Optimum | None:
    try:
        return optimise(problem)
    except ValueError:
        return None
