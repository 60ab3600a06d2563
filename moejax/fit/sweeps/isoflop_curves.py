"""Sort runs into IsoFLOP budgets, fit independent curves (Abnar et al., Appendix D.4), and find their optima.

A parabola in log size is fitted to the runs of each sparsity and budget. The ends of the trained range never count as
optima. Power laws of compute are fitted to the optima.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float
from numpy.polynomial import polynomial

from moejax.errors import UserError
from moejax.fit.runs import Runs, budgets
from moejax.float64 import float64
from moejax.interval import DECISIVE_FACTOR, interval
from moejax.json_text import fields, finite
from moejax.wording import counted

INPUTS = ("params_total", "tokens", "flops", "num_experts", "top_k")
LEAST_SIZES, LEAST_SPARSITIES = 3, 3
"""Minimum numbers of sizes per sparsity and of sparsities per budget that determine the curvature in each direction."""
SHOWN = 5
"""Maximum number of budgets that a message lists."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The runs of one training budget."""

    flops: float
    """Geometric mean of the runs' FLOPs."""
    runs: Runs
    sparsity: Float[np.ndarray, " runs"]
    """Sparsity S of Abnar et al., rounded so that equal values compare equal."""

    @property
    def size(self) -> Float[np.ndarray, " runs"]:
        """Size N of the surface: total parameters, or active parameters after ``by_active``."""
        return self.runs.design.params_total

    @property
    def levels(self) -> list[float]:
        """Trained sparsities in ascending order."""
        return [float(level) for level in np.unique(self.sparsity[self.runs.weight > 0])]

    def by_active(self) -> Budget:
        """Return the same runs with active parameters as their size (Figures 1b and 2c)."""
        design = dataclasses.replace(self.runs.design, params_total=self.runs.design.params_active)
        return dataclasses.replace(self, runs=dataclasses.replace(self.runs, design=design))


def isoflop_budgets(runs: Runs) -> tuple[list[Budget], tuple[str, ...]]:
    """Return the budgets with enough runs for a surface, in ascending order, and a message about each omitted budget.

    Runs of weight 0 are left out.

    Raises:
      UserError: a field is missing, a sparsity is invalid, the FLOPs form no budgets, or no budget has enough runs.
    """
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise UserError(f"The recipe reads {', '.join(INPUTS)}, but the runs have no {', '.join(missing)}.")
    runs = runs.where(runs.weight > 0)
    sparsity = sparsity_of(runs)
    number, flops = budgets(runs.design.flops)
    kept, left_out = [], []
    for one, spent in enumerate(flops):
        here = number == one
        budget = Budget(flops=float(spent), runs=runs.where(here), sparsity=sparsity[here])
        if fault := _fault(budget):
            left_out.append(f"{spent:.3g} FLOPs: {fault}.")
        else:
            kept.append(budget)
    if not kept:
        raise UserError(
            f"No budget has enough runs for an IsoFLOP surface, which needs runs of equal flops at {LEAST_SPARSITIES} "
            f"sparsities (1 - top_k / num_experts) with {LEAST_SIZES} sizes (params_total) each. "
            + " ".join(first(left_out))
        )
    return kept, tuple(left_out)


def first(sentences: Sequence[str]) -> list[str]:
    """Return the first few sentences, and a sentence with the number of omitted sentences."""
    more = len(sentences) - SHOWN
    return [*sentences[:SHOWN], *([f"And {more} more budgets."] if more > 0 else [])]


def sparsity_of(runs: Runs) -> Float[np.ndarray, " runs"]:
    """Return the sparsity S of Abnar et al. for every run, rounded so that equal values compare equal.

    Raises:
      UserError: a token uses more experts than the model has.
    """
    with float64():
        sparsity = np.round(np.asarray(runs.design.sparsity, np.float64), 5)
    if (wrong := np.flatnonzero((sparsity < 0) | (sparsity >= 1) | ~np.isfinite(sparsity))).size:
        design, first = runs.design, wrong[0]
        raise UserError(
            f"num_experts is {design.num_experts[first]:g} and top_k {design.top_k[first]:g} in {runs.names[first]}, "
            f"but the sparsity 1 - top_k / num_experts must be in [0, 1) ({counted(len(wrong), 'such run')})."
        )
    return sparsity


def _fault(budget: Budget) -> str:
    sizes = [len(np.unique(budget.size[budget.sparsity == level])) for level in budget.levels]
    if (enough := sum(count >= LEAST_SIZES for count in sizes)) < LEAST_SPARSITIES:
        known = f"{_count(len(budget.runs), 'run', 'runs')} with {_count(len(sizes), 'sparsity', 'sparsities')}"
        return f"{known}, {enough} of them with at least {LEAST_SIZES} sizes"
    return ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


AT_AN_END = 1e-6
"""Distance from an end, as a share of the range's logarithmic width, within which a minimum counts as at the end."""

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


def end(logs: Any, low: Any, high: Any) -> Any:
    """Return -1 if a minimum between two logarithms is at the lower end, 1 at the upper end, and 0 in between."""
    margin = AT_AN_END * (high - low)
    return np.where(logs <= low + margin, -1, np.where(logs >= high - margin, 1, 0))


LEAST_SIZES_OF_A_CURVE = 4
"""Minimum number of sizes: a parabola has three coefficients, and the fourth size tests it."""
DERIVATIVE = polynomial.polyder(np.eye(3))
"""Matrix that maps a parabola's coefficients to its derivative's coefficients."""


@dataclass(frozen=True)
class Parabola:
    """A least-squares parabola in log size, centred at ``middle``."""

    held: dict[str, float]
    """Quantities that are equal in all runs, by name."""
    middle: float
    coefficients: Float[np.ndarray, " 3"]
    inverse: Float[np.ndarray, "3 3"]
    """Inverse of the normal matrix; its product with the noise variance is the covariance of the coefficients."""
    logs: tuple[float, float]
    """Smallest and largest log size, minus ``middle``."""


def best_sizes_by_curves(budget: Budget, level: float = 0.9) -> tuple[IsoflopOptimum, ...]:
    """Return the optimal size N* of each sparsity, from a separate parabola.

    The interval contains the sizes at which the parabola's slope does not differ significantly from 0 (Fieller 1954).
    The noise is estimated from the residuals of all the budget's parabolas. A sparsity with fewer than four sizes has
    no optimum.
    """
    curves = []
    for level_of_it in budget.levels:
        here = budget.sparsity == level_of_it
        if len(np.unique(budget.size[here])) >= LEAST_SIZES_OF_A_CURVE:
            curves.append(_parabola(budget.runs.where(here), budget.size[here], {"sparsity": level_of_it}))
    if not curves:
        return ()
    reach = reach_of(sum(residual for _, residual, _ in curves), sum(freedom for *_, freedom in curves), level)
    return tuple(vertex(budget.flops, curve, reach) for curve, *_ in curves)


def reach_of(residual: float, degrees_of_freedom: int, level: float) -> float:
    """Return the variance of the loss around parabolas times Student's t squared; NaN without degrees of freedom.

    Args:
      residual: weighted sum of squared residuals.
    """
    if not degrees_of_freedom:
        return math.nan
    return float(scipy.special.stdtrit(degrees_of_freedom, (1 + level) / 2)) ** 2 * residual / degrees_of_freedom


def _parabola(runs: Runs, size: Float[np.ndarray, " runs"], held: dict[str, float]) -> tuple[Parabola, float, int]:
    """Return a parabola in log size fitted to runs, its weighted sum of squared residuals, and degrees of freedom."""
    logs, losses, weights = np.log(size), runs.loss, runs.weight
    middle = float(logs.mean())
    matrix = polynomial.polyvander(logs - middle, 2)
    inverse = np.linalg.inv(matrix.T @ (weights[:, None] * matrix))
    coefficients = inverse @ matrix.T @ (weights * losses)
    curve = Parabola(
        held=held,
        middle=middle,
        coefficients=coefficients,
        inverse=inverse,
        logs=(float(logs.min() - middle), float(logs.max() - middle)),
    )
    return curve, float(weights @ (losses - matrix @ coefficients) ** 2), len(logs) - len(coefficients)


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
