"""Independent IsoFLOP curves (Abnar et al., Appendix D.4), and the optimum that a curve or a slice has.

A curve is a parabola in log size per sparsity and budget; an end of what was trained is never an optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float
from numpy.polynomial import polynomial

from moejax.fit.isoflop_budgets import Budget
from moejax.interval import DECISIVE_FACTOR, interval

AT_AN_END = 1e-6
"""Share of the width, in logarithms, within which a lowest point is the end."""

FLAT = 2
"""Beside the ends -1 and 1: the surface does not vary along the slice, or the slice is one point."""
SIZE_ENDS: dict[int, str] = {
    -1: "the loss rises from {low:.3g} on, the smallest size reached",
    1: "the loss falls up to {high:.3g}, the largest size reached",
    FLAT: "the surface does not vary between sizes of {low:.3g} and {high:.3g}",
}
"""Why there is no best size where the lowest loss is at the lower end of the sizes, the upper one, or everywhere."""


@dataclass(frozen=True, kw_only=True)
class IsoflopOptimum:
    """The value of one factor at which the loss is lowest, the others held; None where there is no such value."""

    flops: float
    held: dict[str, float]
    """What is held, by name."""
    value: float | None = None
    low: float = float("nan")
    high: float = float("nan")
    """Ends of the value's interval."""
    determined: bool = False
    """Whether the runs determine the value: its interval is narrow enough, and few resamples lack one."""
    loss: float | None = None
    """Nats per token at the value."""
    why: str = ""
    """Why there is no value; empty where there is one."""

    def __str__(self) -> str:
        if self.value is None:
            return "none"
        return f"{self.value:.4g} [{self.low:.3g}, {self.high:.3g}]" + ("" if self.determined else " ?")

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not a number is null."""
        ends = {name: finite(getattr(self, name)) for name in ("low", "high")}
        known = {"value": self.value, **ends, "determined": self.determined, "loss": self.loss, "why": self.why}
        return {"flops": self.flops, **self.held, **known}


def optimum_of(
    flops: float,
    held: dict[str, float],
    values: Float[np.ndarray, " fits"],
    losses: Float[np.ndarray, " fits"],
    inside: Bool[np.ndarray, " fits"],
    why: str,
    level: float,
) -> IsoflopOptimum:
    """The optimum of the fit to every run, which comes first, with the interval of the fits to resamples.

    Args:
      inside: where the loss is lowest between the ends.
      why: why the fit to every run has no optimum; empty if it has one.
    """
    if why:
        return IsoflopOptimum(flops=flops, held=held, why=why)
    ends = interval(np.where(inside & np.isfinite(losses), values, np.nan)[1:], level)
    return IsoflopOptimum(
        flops=flops,
        held=held,
        value=float(values[0]),
        low=ends.low,
        high=ends.high,
        determined=not ends.uninformative,
        loss=float(losses[0]),
    )


def finite(value: float) -> float | None:
    """A number for JSON."""
    return float(value) if np.isfinite(value) else None


def end(logs: Any, low: Any, high: Any) -> Any:
    """-1 where a lowest point between two logarithms is the lower end, 1 where it is the upper, 0 between them."""
    margin = AT_AN_END * (high - low)
    return np.where(logs <= low + margin, -1, np.where(logs >= high - margin, 1, 0))


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
    degrees_of_freedom: int
    """Runs less coefficients."""
    logs: tuple[float, float]
    """Smallest and largest log size, less ``middle``."""


def best_sizes_by_curves(budget: Budget, level: float = 0.9) -> tuple[IsoflopOptimum, ...]:
    """N* of the parabola through the runs of every sparsity alone; no other sparsity has a say.

    The interval holds the sizes at which the parabola's slope cannot be told from 0 (Fieller 1954), at the noise that
    the residuals of all parabolas of the budget have. A sparsity of fewer than four sizes has none.
    """
    curves = [_parabola(budget, at) for at in budget.levels if _sizes(budget, at) >= LEAST_SIZES]
    degrees_of_freedom = sum(curve.degrees_of_freedom for curve in curves)
    if not degrees_of_freedom:
        return ()
    noise = sum(curve.residual for curve in curves) / degrees_of_freedom
    reach = float(scipy.special.stdtrit(degrees_of_freedom, (1 + level) / 2)) ** 2 * noise
    return tuple(_vertex(budget.flops, curve, reach) for curve in curves)


def _sizes(budget: Budget, sparsity: float) -> int:
    return len(np.unique(budget.size[budget.sparsity == sparsity]))


def _parabola(budget: Budget, sparsity: float) -> Parabola:
    here = budget.sparsity == sparsity
    logs, losses, weights = np.log(budget.size[here]), budget.runs.loss[here], budget.runs.weight[here]
    middle = float(logs.mean())
    matrix = polynomial.polyvander(logs - middle, 2)
    inverse = np.linalg.inv(matrix.T @ (weights[:, None] * matrix))
    coefficients = inverse @ matrix.T @ (weights * losses)
    return Parabola(
        sparsity=sparsity,
        middle=middle,
        coefficients=coefficients,
        inverse=inverse,
        residual=float(weights @ (losses - matrix @ coefficients) ** 2),
        degrees_of_freedom=len(logs) - len(coefficients),
        logs=(float(logs.min() - middle), float(logs.max() - middle)),
    )


def _vertex(flops: float, curve: Parabola, reach: float) -> IsoflopOptimum:
    """The lowest point; ``reach`` is the noise's variance times the square of Student's t."""
    held = {"sparsity": curve.sparsity}
    slope = DERIVATIVE @ curve.coefficients
    if slope[1] <= 0:
        return IsoflopOptimum(flops=flops, held=held, why="the parabola does not open upwards")
    (vertex,) = polynomial.polyroots(slope)
    smallest, largest = np.exp(curve.middle + np.array(curve.logs))
    if (side := int(end(vertex, *curve.logs))) != 0:
        why = f"its vertex lies below {smallest:.3g}" if side < 0 else f"its vertex lies above {largest:.3g}"
        return IsoflopOptimum(
            flops=flops, held=held, why=f"{why}, the {'smallest' if side < 0 else 'largest'} size trained"
        )
    low, high = _fieller(slope, reach * DERIVATIVE @ curve.inverse @ DERIVATIVE.T)
    return IsoflopOptimum(
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
