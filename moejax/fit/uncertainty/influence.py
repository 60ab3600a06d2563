"""Compute the influence of runs on an estimate by differentiating through the optimum, without refits, to
first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.starts import WarmStart
from moejax.fit.uncertainty.derivatives import Functional, derivatives
from moejax.float64 import float64


@dataclass(frozen=True, kw_only=True)
class Influence:
    """The influence of every run on one number."""

    value: float
    per_nat: Float[np.ndarray, " runs"]
    """Derivative of the number in each run's loss (per nat); 0 for a run that Huber's penalty treats as an outlier."""
    if_removed: Float[np.ndarray, " runs"]
    """First-order change of the number if the run is removed."""

    def most(self, count: int = 3) -> list[int]:
        """Return the indices of the runs whose removal changes the number most."""
        return [int(i) for i in np.argsort(-np.abs(self.if_removed))[:count]]


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """The most influential runs of a number, and the number refitted without them."""

    value: float
    runs: tuple[int, ...]
    """Indices of the runs, the most influential first."""
    predicted: tuple[float, ...]
    """First-order prediction of the number without each of these runs."""
    refitted: tuple[float, ...]
    """The number from a refit without each of these runs."""
    without_all: float
    """The number from a refit without all of these runs."""


def deciding(result: FitResult, runs: Runs, functional: Functional, count: int = 3) -> Deciding:
    """Find the ``count`` runs whose removal changes one number most by implicit differentiation, and check them by
    refits.

    Raises:
      UserError: the functional has more than one number, the runs do not determine it, or too few runs would remain.
    """
    influences = influence(result, runs, functional)
    if len(influences) != 1 or not np.isfinite(influences[0].value):
        raise UserError(
            f"Influence is asked of one finite number; the estimand gave {[one.value for one in influences]}."
        )
    (one,) = influences
    if why := result.unknown(functional, 1)[0]:
        raise UserError(f"{why[:1].upper()}{why[1:]}.")
    most = one.most(min(count, int((runs.weight > 0).sum())))

    def without(left_out: Sequence[int]) -> float:
        kept = ~np.isin(np.arange(len(runs)), left_out)
        start = WarmStart((result.law,))
        refit = fit_law(
            type(result.law),
            runs.only(kept),
            penalty=result.penalty,
            starts=start,
            fixed=result.fixed,
            output=result.output,
        )
        with float64():
            return float(functional(refit.law))

    return Deciding(
        value=one.value,
        runs=tuple(most),
        predicted=tuple(float(one.value + one.if_removed[i]) for i in most),
        refitted=tuple(without([i]) for i in most),
        without_all=without(most),
    )


def influence(result: FitResult, runs: Runs, functional: Functional) -> list[Influence]:
    """Return the influence of every run on every number of a functional, in the order of its leaves.

    At an optimum, the gradient of the objective is 0 for all losses and weights. By the implicit function theorem,
    du/dL = -H⁻¹ · ∂²F/∂u∂L for the losses, and du/dw = -H⁻¹ · ∂F_i/∂u for the weights.
    """
    at = derivatives(result, runs)
    values = at.evaluate(functional)
    slopes = at.slopes(functional)
    per_nat = -slopes @ at.solve((at.weight[:, None] * at.bends).T)
    if_removed = slopes @ at.solve((at.weight[:, None] * at.scores).T)
    return [
        Influence(value=float(v), per_nat=n, if_removed=r) for v, n, r in zip(values, per_nat, if_removed, strict=True)
    ]
