"""Check whether published constants are an optimum of the runs they were fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import Huber, Penalty
from moejax.fit.search.starts import Grid
from moejax.fit.selection.metrics import predict
from moejax.float64 import float64
from moejax.laws.law import coefficients

SAME = 1e-5
"""Relative difference from a starting value, within printed precision, below which a coefficient never moved."""
WORSE = 1e-3
"""Relative excess of the objective above which a law is not an optimum."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """A given law compared with the best fit to the same runs and penalty."""

    value: float
    """Sum of penalties of the given law."""
    best: FitResult
    excess: float
    """Relative excess of the given law's objective over the optimum's."""
    at_start: dict[str, float]
    """Coefficients that equal a starting value of their search to printed precision."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Findings as sentences; empty if the law is an optimum."""
        said = []
        if self.excess > WORSE:
            said.append(f"The objective is {self.excess:.1%} above the optimum's: the search stopped early.")
        said += [
            f"{name} is {value:.6g}, a value it was started from: it never moved."
            for name, value in self.at_start.items()
        ]
        return tuple(said)


def diagnose(law: Any, runs: Runs, *, penalty: Penalty | None = None, grid: Grid | None = None) -> Diagnosis:
    """Compare a law with constants to the best fit to the same runs.

    Args:
      grid: starting points of the law's own search, if known.
    """
    penalty = penalty or Huber()
    best = fit_law(law, runs, penalty=penalty)
    with float64():
        value = float(np.sum(runs.weight * np.asarray(penalty(predict(law, runs, best.output), runs.loss))))
    starts = {} if grid is None else grid.values
    at_start = {
        name: float(number)
        for name, number in coefficients(law).items()
        if any(abs(number - start) <= SAME * abs(start) for start in starts.get(name, ()) if start)
    }
    return Diagnosis(value=value, best=best, excess=value / best.value - 1, at_start=at_start)
