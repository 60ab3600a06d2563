"""Independent IsoFLOP curves (Abnar et al., Appendix D.4): a parabola in log size per sparsity and budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.stats
from jaxtyping import Float
from numpy.polynomial import polynomial

from moejax.fit.isoflop_optimum import Optimum, end
from moejax.fit.isoflop_runs import Budget
from moejax.interval import DECISIVE_FACTOR

LEAST_SIZES = 4
"""A parabola has three coefficients; the fourth size tests it."""
DERIVATIVE = polynomial.polyder(np.eye(3))
"""From the coefficients of a parabola to those of its slope."""


@dataclass(frozen=True)
class Parabola:
    """A parabola in log size about the mean log size, by least squares."""

    sparsity: float
    middle: float
    coefficients: Float[np.ndarray, " 3"]
    inverse: Float[np.ndarray, "3 3"]
    """Inverse of the normal matrix: times the noise's variance, the coefficients' covariance."""
    residual: float
    """Sum of squares."""
    freedom: int
    """Runs less coefficients."""
    logs: tuple[float, float]
    """Smallest and largest log size, less ``middle``."""


def best_sizes_by_curves(budget: Budget, level: float = 0.9) -> tuple[Optimum, ...]:
    """N* of the parabola through the runs of every sparsity alone; no other sparsity has a say.

    The interval holds the sizes at which the parabola's slope cannot be told from 0 (Fieller 1954), at the noise that
    the residuals of all parabolas of the budget have. A sparsity of fewer than four sizes has none.
    """
    curves = [_parabola(budget, at) for at in budget.levels if _sizes(budget, at) >= LEAST_SIZES]
    freedom = sum(curve.freedom for curve in curves)
    if not freedom:
        return ()
    noise = sum(curve.residual for curve in curves) / freedom
    reach = float(scipy.stats.t.ppf((1 + level) / 2, freedom)) ** 2 * noise
    return tuple(_vertex(budget.flops, curve, reach) for curve in curves)


def _sizes(budget: Budget, sparsity: float) -> int:
    return len(np.unique(budget.size[budget.sparsity == sparsity]))


def _parabola(budget: Budget, sparsity: float) -> Parabola:
    here = budget.sparsity == sparsity
    logs, losses, weights = np.log(budget.size[here]), budget.runs.loss[here], budget.runs.weight[here]
    middle = float(logs.mean())
    matrix = polynomial.polyvander(logs - middle, 2)
    inverse = np.linalg.inv(matrix.T @ (weights[:, None] * matrix))
    found = inverse @ matrix.T @ (weights * losses)
    return Parabola(
        sparsity=sparsity,
        middle=middle,
        coefficients=found,
        inverse=inverse,
        residual=float(weights @ (losses - matrix @ found) ** 2),
        freedom=len(logs) - len(found),
        logs=(float(logs.min() - middle), float(logs.max() - middle)),
    )


def _vertex(flops: float, curve: Parabola, reach: float) -> Optimum:
    """The lowest point; ``reach`` is the noise's variance times the square of Student's t."""
    held = {"sparsity": curve.sparsity}
    slope = DERIVATIVE @ curve.coefficients
    if slope[1] <= 0:
        return Optimum(flops=flops, held=held, why="the parabola does not open upwards")
    (vertex,) = polynomial.polyroots(slope)
    smallest, largest = np.exp(curve.middle + np.array(curve.logs))
    if (side := int(end(vertex, *curve.logs))) != 0:
        why = f"its vertex lies below {smallest:.3g}" if side < 0 else f"its vertex lies above {largest:.3g}"
        return Optimum(flops=flops, held=held, why=f"{why}, the {'smallest' if side < 0 else 'largest'} size trained")
    low, high = _fieller(slope, reach * DERIVATIVE @ curve.inverse @ DERIVATIVE.T)
    return Optimum(
        flops=flops,
        held=held,
        value=float(np.exp(curve.middle + vertex)),
        low=float(np.exp(curve.middle + low)),
        high=float(np.exp(curve.middle + high)),
        determined=bool(high - low <= np.log(DECISIVE_FACTOR)),
        loss=float(polynomial.polyval(vertex, curve.coefficients)),
    )


def _fieller(slope: np.ndarray, covariance: np.ndarray) -> tuple[float, float]:
    """Where a line's square is at most its variance; all numbers, if its own slope cannot be told from 0."""
    variance = [covariance[0, 0], 2 * covariance[0, 1], covariance[1, 1]]
    above = polynomial.polysub(polynomial.polymul(slope, slope), variance)
    if above[-1] <= 0:
        return -math.inf, math.inf
    low, high = sorted(polynomial.polyroots(above).real)
    return float(low), float(high)
