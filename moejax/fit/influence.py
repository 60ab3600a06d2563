"""Which runs decide an estimate, by differentiating through the optimum: no refit, exact to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.derivatives import Functional, derivatives
from moejax.fit.fit_law import fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.starts import WarmStart
from moejax.float64 import float64
from moejax.json_text import finite


@dataclass(frozen=True, kw_only=True)
class Influence:
    """How every run moves one number."""

    value: float
    per_nat: Float[np.ndarray, " runs"]
    """What the number gains per nat more in a run's loss; 0 for a run that Huber's penalty treats as an outlier."""
    if_removed: Float[np.ndarray, " runs"]
    """What the number gains, to first order, if the run had not been trained."""

    def most(self, count: int = 3) -> list[int]:
        """Numbers of the runs whose removal moves the number most."""
        return [int(i) for i in np.argsort(-np.abs(self.if_removed))[:count]]


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """The runs that decide a number most, and what it is without them, fitted again."""

    value: float
    runs: tuple[int, ...]
    """Numbers of the runs, the most decisive first."""
    predicted: tuple[float, ...]
    """The number without each of them, to first order."""
    refitted: tuple[float, ...]
    """The number by a fit without each of them."""
    without_all: float
    """The number by a fit without all of them."""

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not finite is null."""
        return {name: value for name, value in finite(self).items() if name != "runs"}


def deciding(result: FitResult, runs: Runs, functional: Functional, count: int = 3) -> Deciding:
    """The ``count`` runs whose removal moves one number most, by implicit differentiation, checked by refits.

    Raises:
      UserError: the functional is more than one number, the runs do not tell it, or too few would be left to fit.
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
    """Influence of every run on every number of a functional, in the order of its leaves.

    At an optimum the slope of the objective is 0 whatever the losses are; differentiating that in the losses gives
    du/dL = -H⁻¹ · ∂²F/∂u∂L, and in the weights du/dw = -H⁻¹ · ∂F_i/∂u (the implicit function theorem).
    """
    at = derivatives(result, runs)
    values, _ = at.evaluate(functional)
    slopes = at.slopes(functional)
    per_nat = -slopes @ at.solve((at.weight[:, None] * at.bends).T)
    if_removed = slopes @ at.solve((at.weight[:, None] * at.scores).T)
    return [
        Influence(value=float(v), per_nat=n, if_removed=r) for v, n, r in zip(values, per_nat, if_removed, strict=True)
    ]
