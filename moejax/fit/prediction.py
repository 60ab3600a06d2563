"""What a run that is not yet trained will reach, with the range that its measured loss should fall in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from moejax.fit.bootstrap import Bootstrap, too_few
from moejax.fit.covariance import uncertainty
from moejax.fit.derivatives import Functional
from moejax.fit.estimands import Estimand
from moejax.fit.fit_result import FitResult
from moejax.fit.intervals import PredictionIntervals, Spread, left_by
from moejax.fit.runs import Runs
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
    """Ranges that hold the measured losses of new runs with a probability, if the law's form holds there.

    The variance of log loss is that of the coefficients (from the resampled laws' predictions, or by the delta
    method where none are given) and, added to it, what the law leaves of the runs it was fitted to (lack of fit and
    noise between seeds, which no number of resamples makes smaller). With few runs the range is a Student-t's.
    Resamples of no more draws than there are coefficients say nothing: the delta method stands in their place.

    Args:
      runs: those of the fit; None for a fit that was read from a file, whose own covariance then serves.
      design: fields with one entry per new run.
      weight: of how many runs each measured number is the mean.

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
    """The resamples, if they are of more draws than there are coefficients."""
    few = resampled is None or too_few(result, resampled.draws, resampled.by)
    return None if few else resampled


def _over(resampled: Bootstrap, functional: Functional, result: FitResult) -> Spread:
    """How far every number of a functional is spread over resamples of a fit."""
    answers = resampled.evaluate(functional)
    # Laws that give no number are left out; the interval of a decision counts them.
    known = np.where(np.isfinite(answers), answers, np.nan)
    degrees_of_freedom = np.full(known.shape[1], float(left_by(resampled.draws, result.free)))
    errors = np.nanstd(known, axis=0)
    found = Spread(middle=np.nanmean(known, axis=0), errors=errors, degrees_of_freedom=degrees_of_freedom)
    return found.without(result.unknown(functional, len(errors), errors))


@dataclass(frozen=True, kw_only=True)
class RunPrediction:
    """One run that is not yet trained."""

    estimand: Estimand
    predicted: PredictionIntervals
    level: float
    by_resamples: bool
    """Whether the coefficients' share comes from resampled fits, or from standard errors."""

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not finite is null."""
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
    """The range of one run that is described by what an estimand is asked at.

    Raises:
      UserError: as ``predict_runs``.
    """
    design = design_from(estimand.given)
    by_resamples = enough(result, resampled) is not None
    predicted = predict_runs(result, runs, resampled, design, level, covariance=covariance, by=by)
    return RunPrediction(estimand=estimand, predicted=predicted, level=level, by_resamples=by_resamples)


class RunRange(NamedTuple):
    """The range of one new run by a fit from a file."""

    interval: dict[str, float] | None
    """``low``, ``high`` and ``level``."""
    why_none: str = ""
    """A sentence where there is none."""


def range_of(fit: FitResult, design: Design, level: float = 0.9) -> RunRange:
    """The range of one new run by a fit from a file, or why the file gives none."""
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
"""What a range outside the fitted runs rests on, and nothing in these runs can test."""


def range_in_words(fit: FitResult, found: RunRange, *, beyond: bool) -> str:
    """The same as a sentence, or why there is none.

    Args:
      beyond: whether the run lies outside the fitted ones.
    """
    if found.interval is None:
        return found.why_none
    ends = f"[{found.interval['low']:.5g}, {found.interval['high']:.5g}]"
    article = "an" if fit.output[0] in "aeiou" else "a"
    said = f"{in_percent(found.interval['level'])} of such runs have {article} {fit.output.replace('_', ' ')} in {ends}"
    return f"{said}, {IF_THE_FORM_HOLDS}." if beyond else f"{said}."
