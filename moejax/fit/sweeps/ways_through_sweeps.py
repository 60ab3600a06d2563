"""Fit a law to sweeps reduced in three ways: weighted minima, unweighted minima, and best rows.

The minimum of a quadratic (``smooth_best_by``) and the best row of a sweep estimate the same optimum. If the law does
not hold everywhere, or if a quadratic is biased, coefficients depend on the weights and the kind of optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.json_text import finite

MINIMA, ALIKE, BEST = "minima", "minima, equal weights", "best rows"
"""Labels of the three ways to reduce each sweep to one row."""


@dataclass(frozen=True, kw_only=True)
class WayCoefficient:
    """A coefficient with the ends of its interval; unknown ends are None."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Way:
    """Number of runs and coefficients for one way to reduce sweeps."""

    runs: int
    coefficients: Mapping[str, WayCoefficient]


@dataclass(frozen=True, kw_only=True)
class Sweeps:
    """The coefficients for each way to reduce sweeps, and warnings where these differ."""

    level: float
    ways: Mapping[str, Way]
    warnings: tuple[str, ...]


def ways_through_sweeps(
    result: FitResult, minima: Runs, best: Runs, level: float, *, how: Mapping[str, Any], **options: Any
) -> Sweeps:
    """Return the coefficients for all three ways; ``result`` is the fit to the minima.

    Args:
      how: options of ``with_uncertainty``.
      options: options of ``fit_law``.
    """
    alike = dataclasses.replace(minima, weight=(minima.weight > 0).astype(np.float64))
    fits = {MINIMA: (result, minima)}
    for name, runs in ((ALIKE, alike), (BEST, best)):
        fits[name] = (with_uncertainty(fit_law(type(result.law), runs, **options), runs, **how), runs)
    ways = {
        name: Way(
            runs=int((runs.weight > 0).sum()),
            coefficients={
                row.name: WayCoefficient(value=row.value, low=finite(row.low), high=finite(row.high))
                for row in fit.coefficient_rows(level)
                if row.name not in fit.without_error
            },
        )
        for name, (fit, runs) in fits.items()
    }
    return Sweeps(level=level, ways=ways, warnings=_warnings(ways))


def _warnings(ways: Mapping[str, Way]) -> tuple[str, ...]:
    minima, alike, best = (ways[name].coefficients for name in (MINIMA, ALIKE, BEST))
    said = []
    for name in minima:
        if name not in best or not _differ(minima[name], best[name]):
            continue
        weights = name in alike and not _differ(alike[name], best[name])
        said.append(
            f"{name} is {_written(minima[name])} for the minima of the sweeps and {_written(best[name])} for their "
            f"best rows, each outside the other's interval. "
            + (
                f"With equal weights the minima give {_written(alike[name])}, so the weights cause the difference. "
                f"Check which sweeps have small standard errors, or give weights (--weight COLUMN)."
                if weights
                else "Check the sweeps whose minimum is far from their best row; a finer grid shows which is right."
            )
        )
    return tuple(said)


def _differ(one: WayCoefficient, other: WayCoefficient) -> bool:
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return not (one.low <= other.value <= one.high or other.low <= one.value <= other.high)


def _written(one: WayCoefficient) -> str:
    return f"{one.value:.4g} [{one.low:.4g}, {one.high:.4g}]"
