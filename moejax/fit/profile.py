"""Profile intervals: how far a coefficient or a decision can be pushed before the runs object."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.stats
from jax.flatten_util import ravel_pytree

from moejax.fit.bootstrap import Interval
from moejax.fit.fit_result import FitResult
from moejax.fit.optimum import Decision, Optimum, optimum
from moejax.fit.problem import Form
from moejax.fit.runs import Runs

FARTHEST = 200.0
"""Standard errors at which an interval is given up as open."""
NEWTON_STEPS = 30


def profile(result: FitResult, runs: Runs, decision: Decision, level: float = 0.9) -> Interval:
    """The values of one number that the runs do not reject, every coefficient refitted at each.

    The objective is minimised among the laws that give the number a value; where it exceeds its minimum by
    ``chi²(level) · dispersion / 2`` the interval ends (for squared residuals this is the likelihood ratio; for Huber's
    penalty its robust counterpart). Unlike a standard error it sees that a law is not linear, and unlike a bootstrap
    it does not depend on luck. An end that the runs do not set is infinite.

    Raises:
      ValueError: the decision is more than one number, or not finite, or no coefficient moves it.
    """
    at = optimum(result, runs)
    answer, _ = at.decide(decision)
    if answer.size != 1 or not np.isfinite(answer).all():
        raise ValueError(f"A profile is of one finite number; the decision gave {answer}.")
    slope = at.slopes(decision)[0]
    spread = float(np.sqrt(max(slope @ at.solve(slope[:, None])[:, 0] * at.dispersion, 0.0)))
    if not spread > 0:
        raise ValueError("No coefficient that was fitted moves this number, so the runs say nothing about it.")
    limit = float(scipy.stats.chi2.ppf(level, 1)) * at.dispersion / 2
    middle = float(answer[0])
    low, high = (_end(at, decision, middle, sign * spread, limit) for sign in (-1.0, 1.0))
    return Interval(low=low, middle=middle, high=high, deviation=spread, undefined=0.0)


def _end(at: Optimum, decision: Decision, middle: float, step: float, limit: float) -> float:
    """Where the profile crosses the limit, walking in steps that grow, each refit starting from the last."""
    state = np.append(at.point, 0.0)
    lowest = float(_at(at, decision, state, middle, step)[0])
    inside, outside = 0.0, 0.5

    def excess(steps: float) -> float:
        nonlocal state
        found = _constrained(at, decision, state, middle + steps * step, step)
        if found is None:
            return float("nan")
        if (value := float(_at(at, decision, found, middle, step)[0]) - lowest - limit) < 0:
            state = found
        return value

    while (value := excess(outside)) < 0:
        inside, outside = outside, 1.5 * outside
        if outside > FARTHEST:
            break
    if not value > 0:
        return float(np.copysign(np.inf, step))
    return middle + step * scipy.optimize.root_scalar(excess, bracket=(inside, outside), rtol=1e-4).root


def _constrained(at: Optimum, decision: Decision, state: np.ndarray, target: float, unit: float) -> np.ndarray | None:
    """The point of least objective at which the decision is ``target``, with its multiplier: Newton on Lagrange."""
    for _ in range(NEWTON_STEPS):
        _, residual, jacobian = (np.asarray(part) for part in _at(at, decision, state, target, unit))
        step = np.linalg.lstsq(jacobian, residual, rcond=1e-13)[0]
        state = state - step / max(1.0, float(np.abs(step[:-1]).max()))
        if not np.isfinite(state).all():
            return None
        if np.abs(step[:-1]).max() < 1e-9:
            return state
    return None


def _at(at: Optimum, decision: Decision, state: np.ndarray, target: float, unit: float) -> tuple[Any, Any, Any]:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        return _lagrange(at.form, decision, state, at.data, at.weight, (target, unit))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _lagrange(
    form: Form, decision: Decision, state: Any, data: Mapping[str, Any], weight: Any, target: tuple[Any, Any]
) -> tuple[Any, Any, Any]:
    """Objective, and the equations of Lagrange with their derivative, at a point and a multiplier.

    ``target`` is the value that the decision must have, and the unit in which a miss is measured.
    """

    def value(point: Any) -> Any:
        return jnp.sum(weight * form.penalties(point, data))

    def lagrangian(both: Any) -> Any:
        answer = ravel_pytree(decision(form.law_at(both[:-1], data)))[0][0]
        return value(both[:-1]) / data["scale"] + both[-1] * (answer - target[0]) / target[1]

    return value(state[:-1]), jax.grad(lagrangian)(state), jax.hessian(lagrangian)(state)
