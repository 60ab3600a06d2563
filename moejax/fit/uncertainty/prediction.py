"""Predict the measured loss of new runs, with prediction intervals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.fit.uncertainty.estimands import Estimand, Named
from moejax.fit.uncertainty.estimates import RESAMPLES, STANDARD
from moejax.interval import in_percent
from moejax.json_text import fields, finite
from moejax.laws.design import Design, design_from


@dataclass(frozen=True, kw_only=True)
class RunPrediction(Named):
    """A prediction for one new run, with its range."""

    value: float
    """NaN if the law gives no valid number."""
    low: float
    high: float
    """Ends of the range; NaN if unknown, and infinite if the range is open."""
    level: float
    from_coefficients: float
    """Share of the variance that is due to the coefficients."""
    by: str
    """Source of the coefficients' share."""
    reason: str = ""
    """Reason for a missing range; empty if there is one."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, with the value under its own name; values that are not finite are null."""
        reason = {"reason": self.reason} if self.reason else {}
        return {**finite(fields(self, "value", "reason")), self.name: finite(self.value), **reason}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> RunPrediction:
        """Restore a prediction from ``to_json``."""
        known = {"reason": "", **plain, "value": plain[plain["name"]]}
        for name in ("value", "low", "high", "from_coefficients"):
            known[name] = math.nan if known[name] is None else known[name]
        return cls(**{field.name: known[field.name] for field in dataclasses.fields(cls)})


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
    return RunPrediction(
        **estimand.naming,
        value=float(predicted.loss[0]),
        low=float(predicted.low[0]),
        high=float(predicted.high[0]),
        level=level,
        from_coefficients=predicted.from_coefficients,
        by=STANDARD if used is None else RESAMPLES,
        reason=predicted.unknown[0],
    )


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
        return RunRange(None, f"There is no range for this run: {predicted.unknown[0]}.")
    low, high = float(predicted.low[0]), float(predicted.high[0])
    if not np.isfinite([low, high]).all():
        return RunRange(None, "The range of this run is not finite.")
    return RunRange({"low": low, "high": high, "level": level})


IF_THE_FORM_HOLDS = "if the law's form holds that far beyond the fitted runs: the range knows their scatter alone"
"""Assumption of an interval outside the fitted runs, which these runs cannot test."""


def range_in_words(fit: FitResult, ranged: RunRange, *, beyond: bool) -> str:
    """Return the interval as a sentence, or the reason why there is none.

    Args:
      beyond: True if the run is outside the range of the fitted runs.
    """
    if ranged.interval is None:
        return ranged.why_none
    ends = f"[{ranged.interval['low']:.5g}, {ranged.interval['high']:.5g}]"
    article = "an" if fit.output[0] in "aeiou" else "a"
    said = (
        f"{in_percent(ranged.interval['level'])} of such runs have {article} {fit.output.replace('_', ' ')} in {ends}"
    )
    return f"{said}, {IF_THE_FORM_HOLDS}." if beyond else f"{said}."
