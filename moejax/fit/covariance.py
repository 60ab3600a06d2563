"""Standard errors of coefficients and decisions from the curvature at the optimum, without resampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.fit.bootstrap import RESAMPLED
from moejax.fit.fit_result import FitResult
from moejax.fit.optimum import Decision, Optimum, optimum
from moejax.fit.runs import Runs
from moejax.laws.law import coefficients

Matrix = Float[np.ndarray, "free free"]


def sandwich(at: Optimum, labels: Any) -> Matrix:
    """H⁻¹ · (sum over groups of g·gᵀ) · H⁻¹, with g the slope that a group's runs add: right whatever the noise is.

    Widened for few groups and few runs as is usual for clustered errors: G / (G - 1) · (n - 1) / (n - k).
    """
    slopes = np.zeros((labels.max() + 1, len(at.point)))
    np.add.at(slopes, labels, at.weight[:, None] * at.scores)
    groups, runs = len(np.unique(labels[at.weight > 0])), int((at.weight > 0).sum())
    few = groups / max(groups - 1, 1) * (runs - 1) / max(runs - len(at.point), 1)
    half = at.solve(slopes.T)
    return half @ half.T * few


def gauss_newton(at: Optimum, labels: Any) -> Matrix:
    """H⁻¹ · dispersion: right if residuals are independent and alike."""
    return at.solve(np.eye(len(at.point))) * at.dispersion


WORDS = {
    "sandwich": "sandwich, right whatever the noise is",
    "gauss_newton": "Gauss-Newton, right if residuals are independent and alike",
}
CLUSTERED = ("sandwich",)
"""Those that take the runs of a group for one draw."""

COVARIANCES: dict[str, Callable[[Optimum, Any], Matrix]] = {"sandwich": sandwich, "gauss_newton": gauss_newton}


def coefficient_errors(result: FitResult, runs: Runs, *, kind: str = "sandwich", by: str = "group") -> dict[str, float]:
    """Standard errors of the coefficients that the runs set; the others are not there.

    Raises:
      ValueError: as ``standard_errors``.
    """
    errors = coefficients(standard_errors(result, runs, lambda law: law, kind=kind, by=by))
    return {name: float(e) for name, e in errors.items() if name not in result.fixed and name not in result.stuck}


def in_words(result: FitResult, runs: Runs, *, kind: str = "sandwich", by: str = "group") -> str:
    """How standard errors came about, and what is wrong with them if something is."""
    kept = runs.weight > 0
    count, free = len(np.unique(RESAMPLED[by](runs)[kept])), len(result.coefficients) - len(result.fixed)
    if kind not in CLUSTERED:
        return f"standard errors: {WORDS[kind]}"
    few = f"; {count} cannot carry {free} coefficients, so they are too small" if count <= free else ""
    return f"standard errors: {WORDS[kind]}, {count} {by}s{few}"


def standard_errors(
    result: FitResult, runs: Runs, decision: Decision, *, kind: str = "sandwich", by: str = "group"
) -> Any:
    """Standard error of every number of a decision, in its pytree, by the delta method.

    Raises:
      ValueError: the runs are not those of the fit, or ``kind`` or ``by`` is unknown.
    """
    if kind not in COVARIANCES or by not in RESAMPLED:
        raise ValueError(
            f"Asked for {kind!r} errors by {by!r}; choose {' or '.join(COVARIANCES)}, by {' or '.join(RESAMPLED)}."
        )
    at = optimum(result, runs)
    slopes = at.slopes(decision)
    variance = np.einsum("af,fg,ag->a", slopes, COVARIANCES[kind](at, RESAMPLED[by](runs)), slopes)
    _, unravel = at.decide(decision)
    return unravel(np.sqrt(np.maximum(variance, 0.0)))
