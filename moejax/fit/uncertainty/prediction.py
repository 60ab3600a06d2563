"""Predict the measured loss of new runs, with prediction intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.fit.uncertainty.estimands import Estimand
from moejax.fit.uncertainty.intervals import PredictionIntervals
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws.design import Design, design_from


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
    result: FitResult, estimand: Estimand, resampled: Bootstrap | None = None, level: float = 0.9
) -> RunPrediction:
    """Return the prediction interval of one run, described by the inputs of an estimand.

    The coefficients' share of the variance is that of the resampled laws, or follows from the fit's covariance. The
    covariance also replaces resamples of no more draws than coefficients.

    Raises:
      UserError: ``level`` is not between 0 and 1, or there are neither resamples nor a covariance in the fit.
    """
    used = None if resampled is None or resampled.few else resampled
    spread = None if used is None else used.spread
    predicted = result.prediction_intervals(design_from(estimand.given), level, spread)
    return RunPrediction(estimand=estimand, predicted=predicted, level=level, by_resamples=used is not None)


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
    predicted = fit.prediction_intervals(design, level)
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
