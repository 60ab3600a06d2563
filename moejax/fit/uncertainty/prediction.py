"""Predict the measured loss of new runs, with prediction intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.uncertainty.bootstrap import Bootstrap, too_few
from moejax.fit.uncertainty.covariance import uncertainty
from moejax.fit.uncertainty.derivatives import Functional
from moejax.fit.uncertainty.estimands import Estimand
from moejax.fit.uncertainty.intervals import PredictionIntervals, Spread, left_by
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws.design import Design, design_from


def predict_runs(
    result: FitResult,
    runs: Runs | None,
    resampled: Bootstrap | None,
    design: Design,
    level: float = 0.9,
    *,
    covariance: str = "sandwich",
    by: str = "group",
    weight: Any = 1.0,
) -> PredictionIntervals:
    """Return prediction intervals for the measured losses of new runs, valid if the form of the law holds there.

    The variance of log loss is the sum of two parts. One is that of the coefficients, from resampled laws, or by the
    delta method without them. The other is the residual variance of the fitted runs: lack of fit and noise between
    seeds, which more resamples do not reduce. With few runs the interval is Student's t. Resamples of no more draws
    than coefficients are replaced by the delta method.

    Args:
      runs: runs of the fit; None for a fit from a file, whose stored covariance is used.
      design: fields with one entry per new run.
      weight: number of runs of which each measured number is the mean.

    Raises:
      UserError: ``level`` is not between 0 and 1, or there are neither runs nor a covariance in the fit.
    """
    if (resampled := enough(result, resampled)) is not None:
        return result.prediction_intervals(
            design, level, lambda functional: _over(resampled, functional, result), weight=weight
        )
    if runs is None:
        return result.prediction_intervals(design, level, weight=weight)
    uncertain = uncertainty(result, runs, kind=covariance, by=by)
    return result.prediction_intervals(design, level, lambda functional: uncertain.spread(functional)[0], weight=weight)


def enough(result: FitResult, resampled: Bootstrap | None) -> Bootstrap | None:
    """Return the resamples if they have more draws than the law has coefficients, else None."""
    few = resampled is None or too_few(result, resampled.draws, resampled.by)
    return None if few else resampled


def _over(resampled: Bootstrap, functional: Functional, result: FitResult) -> Spread:
    """Return the spread of every number of a functional over the resamples of a fit."""
    answers = resampled.evaluate(functional)
    # Laws without a finite number are left out; the interval of an answer counts them.
    known = np.where(np.isfinite(answers), answers, np.nan)
    degrees_of_freedom = np.full(known.shape[1], float(left_by(resampled.draws, result.free)))
    errors = np.nanstd(known, axis=0)
    found = Spread(middle=np.nanmean(known, axis=0), errors=errors, degrees_of_freedom=degrees_of_freedom)
    return found.without(result.unknown(functional, len(errors), errors))


@dataclass(frozen=True, kw_only=True)
class RunPrediction:
    """A prediction for one new run."""

    estimand: Estimand
    predicted: PredictionIntervals
    level: float
    by_resamples: bool
    """True if the coefficients' share of the variance comes from resampled fits, not from standard errors."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; values that are not finite are null."""
        p = self.predicted
        ends = {"low": p.low[0], self.estimand.name: p.loss[0], "high": p.high[0]}
        return {
            "name": self.estimand.name,
            "symbol": self.estimand.symbol,
            "given": dict(self.estimand.given),
            **finite(ends),
            "level": self.level,
            "from_coefficients": finite(p.from_coefficients),
            "by": "resamples" if self.by_resamples else "standard errors",
            **({"reason": p.unknown[0]} if p.unknown[0] else {}),
        }


def predict_run(
    result: FitResult,
    runs: Runs | None,
    estimand: Estimand,
    resampled: Bootstrap | None = None,
    level: float = 0.9,
    *,
    covariance: str = "sandwich",
    by: str = "group",
) -> RunPrediction:
    """Return the prediction interval of one run, described by the inputs of an estimand.

    Raises:
      UserError: as in ``predict_runs``.
    """
    design = design_from(estimand.given)
    by_resamples = enough(result, resampled) is not None
    predicted = predict_runs(result, runs, resampled, design, level, covariance=covariance, by=by)
    return RunPrediction(estimand=estimand, predicted=predicted, level=level, by_resamples=by_resamples)


class RunRange(NamedTuple):
    """The prediction interval of one new run from a stored fit."""

    interval: dict[str, float] | None
    """Bounds ``low`` and ``high``, and ``level``; None if unknown."""
    why_none: str = ""
    """Sentence with the reason if there is no interval."""


def range_of(fit: FitResult, design: Design, level: float = 0.9) -> RunRange:
    """Return the prediction interval of one new run from a stored fit, or the reason why the file gives none."""
    if fit.uncertainty is None:
        said = "The file holds neither ranges nor a covariance; fit again with moejax fit --out to have them."
        return RunRange(None, said)
    if not fit.uncertainty.axes:
        # The fit's warnings give the reason.
        return RunRange(None, "The fit has no covariance, and so no range of new runs.")
    predicted = predict_runs(fit, None, None, design, level)
    if predicted.unknown[0]:
        return RunRange(None, f"Of this run there is no range: {predicted.unknown[0]}.")
    low, high = float(predicted.low[0]), float(predicted.high[0])
    if not np.isfinite([low, high]).all():
        return RunRange(None, "The range of this run is not finite.")
    return RunRange({"low": low, "high": high, "level": level})


IF_THE_FORM_HOLDS = "if the law's form holds that far beyond the fitted runs: the range knows their scatter alone"
"""Assumption of an interval outside the fitted runs, which these runs cannot test."""


def range_in_words(fit: FitResult, found: RunRange, *, beyond: bool) -> str:
    """Return the interval as a sentence, or the reason why there is none.

    Args:
      beyond: True if the run is outside the range of the fitted runs.
    """
    if found.interval is None:
        return found.why_none
    ends = f"[{found.interval['low']:.5g}, {found.interval['high']:.5g}]"
    article = "an" if fit.output[0] in "aeiou" else "a"
    said = f"{in_percent(found.interval['level'])} of such runs have {article} {fit.output.replace('_', ' ')} in {ends}"
    return f"{said}, {IF_THE_FORM_HOLDS}." if beyond else f"{said}."
