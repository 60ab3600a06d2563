"""Find the optima of IsoFLOP budgets: vertices of parabolas, and power laws of compute through the optima.

The ends of the trained range never count as optima.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float
from numpy.polynomial import polynomial

from moejax.fit.sweeps.budget_losses import end
from moejax.interval import DECISIVE_FACTOR, interval
from moejax.json_text import fields, finite

SHOWN = 5
"""Maximum number of budgets that a message lists."""
FLAT = 2
"""Code for a surface that does not vary along the slice, or a slice of one point; -1 and 1 are the ends."""
SIZE_ENDS: dict[int, str] = {
    -1: "the loss rises from {low:.3g} on, the smallest size reached",
    1: "the loss falls up to {high:.3g}, the largest size reached",
    FLAT: "the surface does not vary between sizes of {low:.3g} and {high:.3g}",
}
"""Reasons for a missing best size, by the position of the lowest loss: lower end, upper end, or constant."""


@dataclass(frozen=True, kw_only=True)
class IsoflopOptimum:
    """The optimal value of one factor while the ``held`` factors are fixed."""

    flops: float
    held: dict[str, float]
    """Fixed quantities by name."""
    value: float | None = None
    low: float = float("nan")
    high: float = float("nan")
    """Ends of the value's interval."""
    determined: bool = False
    """True if the runs determine the value: its interval is narrow enough, and few resamples lack a value."""
    loss: float | None = None
    """Loss at the value, in nats per token."""
    why: str = ""
    """Reason for a missing value; empty if ``value`` is given."""

    def __str__(self) -> str:
        if self.value is None:
            return "none"
        return f"{self.value:.4g} [{self.low:.3g}, {self.high:.3g}]" + ("" if self.determined else " ?")

    def to_json(self) -> dict[str, Any]:
        """Return plain data; NaN becomes null."""
        return finite({"flops": self.flops, **self.held, **fields(self, "flops", "held")})


def optimum_of(
    flops: float,
    held: dict[str, float],
    values: Float[np.ndarray, " fits"],
    losses: Float[np.ndarray, " fits"],
    inside: Bool[np.ndarray, " fits"],
    why: str,
    level: float,
) -> IsoflopOptimum:
    """Return the optimum of the fit to all runs (the first entry), with an interval from the fits to resamples.

    Args:
      inside: True for fits whose minimum is between the ends.
      why: reason why the fit to all runs has no optimum; empty if it has one.
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


DERIVATIVE = polynomial.polyder(np.eye(3))
"""Matrix that maps a parabola's coefficients to its derivative's coefficients."""


@dataclass(frozen=True)
class Parabola:
    """A least-squares parabola in log size, centered at ``middle``."""

    held: dict[str, float]
    """Quantities that are equal in all runs, by name."""
    middle: float
    coefficients: Float[np.ndarray, " 3"]
    inverse: Float[np.ndarray, "3 3"]
    """Inverse of the normal matrix; its product with the noise variance is the covariance of the coefficients."""
    logs: tuple[float, float]
    """Smallest and largest log size, minus ``middle``."""


def reach_of(residual: float, degrees_of_freedom: int, level: float) -> float:
    """Return the variance of the loss around parabolas times Student's t squared; NaN without degrees of freedom.

    Args:
      residual: weighted sum of squared residuals.
    """
    if not degrees_of_freedom:
        return math.nan
    return float(scipy.special.stdtrit(degrees_of_freedom, (1 + level) / 2)) ** 2 * residual / degrees_of_freedom


def vertex(flops: float, curve: Parabola, reach: float) -> IsoflopOptimum:
    """Return the minimum of a parabola; its interval is NaN if ``reach`` (from ``reach_of``) is NaN."""
    held = curve.held
    slope = DERIVATIVE @ curve.coefficients
    if slope[1] <= 0:
        return IsoflopOptimum(flops=flops, held=held, why="the parabola does not open upwards")
    (lowest,) = polynomial.polyroots(slope)
    smallest, largest = np.exp(curve.middle + np.array(curve.logs))
    if (side := int(end(lowest, *curve.logs))) != 0:
        why = f"its vertex is below {smallest:.3g}" if side < 0 else f"its vertex is above {largest:.3g}"
        return IsoflopOptimum(
            flops=flops, held=held, why=f"{why}, the {'smallest' if side < 0 else 'largest'} size trained"
        )
    low, high = _fieller(slope, reach * DERIVATIVE @ curve.inverse @ DERIVATIVE.T)
    return IsoflopOptimum(
        flops=flops,
        held=held,
        value=float(np.exp(curve.middle + lowest)),
        low=float(np.exp(curve.middle + low)),
        high=float(np.exp(curve.middle + high)),
        determined=not high - low > np.log(DECISIVE_FACTOR),
        loss=float(polynomial.polyval(lowest, curve.coefficients)),
    )


def _fieller(slope: np.ndarray, covariance: np.ndarray) -> tuple[float, float]:
    """Return where a linear function's square is at most its variance; unbounded if the function's slope may be 0."""
    if np.isnan(covariance).any():
        return math.nan, math.nan
    variance = [covariance[0, 0], 2 * covariance[0, 1], covariance[1, 1]]
    above = polynomial.polysub(polynomial.polymul(slope, slope), variance)
    if above[-1] <= 0:
        return -math.inf, math.inf
    low, high = sorted(polynomial.polyroots(above).real)
    return float(low), float(high)


LEVEL = 0.9
LEAST_BUDGETS = 3
"""Minimum number of budgets: a line through two has no interval."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A power law of the budget, fitted to optima by least squares in logarithms."""

    what: str
    held: dict[str, float]
    budgets: int
    scale: float
    exponent: float
    low: float
    high: float
    """Ends of the exponent's interval, from Student's t."""

    def __str__(self) -> str:
        return f"{self.scale:.4g}·C^{self.exponent:.4f} [{self.low:.3f}, {self.high:.3f}], {self.budgets} budgets"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        fitted = {"scale": self.scale, "exponent": self.exponent, "low": self.low, "high": self.high}
        return {"what": self.what, **self.held, "budgets": self.budgets, **fitted}


def trends_of(what: str, optima: Iterable[IsoflopOptimum], level: float, *, of_share: bool = False) -> list[Trend]:
    """Fit a power law of the budget to each set of optima with equal ``held``; undetermined optima are left out."""
    lines: dict[tuple[tuple[str, float], ...], list[IsoflopOptimum]] = {}
    for one in optima:
        if one.value is not None and one.determined:
            lines.setdefault(tuple(one.held.items()), []).append(one)
    trends = []
    for held, line in lines.items():
        if len(line) >= LEAST_BUDGETS:
            values = np.array([one.value for one in line], np.float64)
            flops = np.array([one.flops for one in line])
            scale, exponent, (low, high) = power_through(flops, 1 - values if of_share else values, level)
            fitted = {"scale": scale, "exponent": exponent, "low": low, "high": high}
            trends.append(Trend(what=what, held=dict(held), budgets=len(line), **fitted))
    return trends


def power_through(
    flops: Float[np.ndarray, " points"], values: Float[np.ndarray, " points"], level: float = LEVEL
) -> tuple[float, float, tuple[float, float]]:
    """Return scale and exponent of a power law of compute fitted to ``values``, and the exponent's Student's t
    interval.

    The interval is NaN if all values are equal, for example on a coarse grid, because their scatter is then 0.
    """
    x, y = np.log(flops), np.log(values)
    if len(np.unique(values)) == 1:
        return float(values[0]), 0.0, (float("nan"), float("nan"))
    (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
    reach = float(scipy.special.stdtrit(len(x) - 2, (1 + level) / 2) * np.sqrt(covariance[0, 0]))
    return float(np.exp(intercept)), float(slope), (float(slope - reach), float(slope + reach))
