"""Fit powers of compute through the optima of sweeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.fit.sweeps.isoflop_curves import IsoflopOptimum

LEVEL = 0.9
LEAST_BUDGETS = 3
"""Minimum number of budgets: a line through two has no interval."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """An optimum as a power of the budget, by least squares in logarithms."""

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
    """Fit a power law of the budget to the optima of equal ``held``; undetermined optima are left out."""
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
    """Return scale and exponent of ``values`` against compute, and the interval of the exponent by Student's t.

    The interval is NaN if all values are equal, as on a coarse grid: they have no scatter to estimate it from.
    """
    x, y = np.log(flops), np.log(values)
    if len(np.unique(values)) == 1:
        return float(values[0]), 0.0, (float("nan"), float("nan"))
    (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
    reach = float(scipy.special.stdtrit(len(x) - 2, (1 + level) / 2) * np.sqrt(covariance[0, 0]))
    return float(np.exp(intercept)), float(slope), (float(slope - reach), float(slope + reach))
