"""What a run that is not yet trained will reach, with the range that its measured loss should fall in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.fit.bootstrap import Bootstrap
from moejax.fit.covariance import uncertainty
from moejax.fit.degrees_of_freedom import left_by
from moejax.fit.estimands import Estimand
from moejax.fit.fit_result import FitResult
from moejax.fit.metrics import predict
from moejax.fit.objective import outputs
from moejax.fit.runs import Runs, runs_from
from moejax.interval import check_level
from moejax.laws.design import Design, design_from, value_of
from moejax.laws.law import coefficients


@dataclass(frozen=True, kw_only=True)
class PredictionIntervals:
    """Ranges for new runs, one entry each."""

    low: Float[np.ndarray, " designs"]
    loss: Float[np.ndarray, " designs"]
    high: Float[np.ndarray, " designs"]
    from_coefficients: float
    """Share of the variance, over all designs that have a range, that is due to the coefficients; the rest is lack of
    fit. NaN where none has one."""
    unknown: tuple[str, ...]
    """Why each has no range (``FitResult.unknown``); empty words where it has one."""


def predict_runs(
    result: FitResult,
    runs: Runs | None,
    resampled: Bootstrap | None,
    design: Design,
    level: float = 0.9,
    *,
    covariance: str = "sandwich",
    by: str = "group",
) -> PredictionIntervals:
    """Ranges that hold the measured losses of new runs with a probability, if the law's form holds there.

    The variance of log loss is that of the coefficients (from the resampled laws' predictions, or by the delta
    method where none are given) and, added to it, what the law leaves of the runs it was fitted to (lack of fit and
    noise between seeds, which no number of resamples makes smaller). With few runs the range is a Student-t's.

    Args:
      runs: those of the fit; None for a fit that was read from a file, whose own covariance then serves.
      design: fields with one entry per new run.

    Raises:
      UserError: ``level`` is not between 0 and 1, or there are neither runs nor a covariance in the fit.
    """
    level = check_level(level)
    count = max(len(np.atleast_1d(value_of(design, name))) for name in type(result.law).inputs)
    new = runs_from(design, np.ones(count))
    predicted = predict(result.law, new, result.output)
    above = predicted > 0
    middle = np.log(np.where(above, predicted, np.nan))
    free = len(result.coefficients) - len(result.fixed)

    def log_loss(law: Any) -> Any:
        return jnp.log(outputs(law, new.design, result.output))

    unknown = tuple(
        why or ("" if there else "the law predicts nothing above 0 there")
        for why, there in zip(result.unknown(log_loss, count), above, strict=True)
    )
    if resampled is None:
        if runs is not None:
            uncertain, _ = uncertainty(result, runs, kind=covariance, by=by).spread(log_loss)
        else:
            uncertain = result.spread(log_loss)
        spread, known = uncertain.errors**2, uncertain.degrees_of_freedom
    else:
        moved = np.stack([np.log(predict(law, new, result.output)) for law in _each(resampled)])
        # Laws that give no number there are left out; the interval of a decision counts them.
        spread = np.nanvar(np.where(np.isfinite(moved), moved, np.nan), axis=0)
        spread = np.where([bool(why) for why in unknown], np.nan, spread)
        known = left_by(resampled.draws, free)
    left = np.square(result.scatter_at(new.design))
    # Welch and Satterthwaite: degrees of freedom of a sum of two estimated variances.
    total = np.maximum(spread + left, 1e-300)
    degrees_of_freedom = total**2 / np.maximum(spread**2 / known + left**2 / left_by(result.metrics.runs, free), 1e-300)
    reach = scipy.special.stdtrit(np.maximum(degrees_of_freedom, 1.0), (1 + level) / 2) * np.sqrt(spread + left)
    with np.errstate(over="ignore"):
        # A range may have no end.
        low, high = np.exp(middle - reach), np.exp(middle + reach)
    ranged = spread[np.isfinite(spread)]
    of_all = np.sum(ranged + left)
    return PredictionIntervals(
        low=low,
        loss=predicted,
        high=high,
        from_coefficients=math.nan if not len(ranged) else float(np.sum(ranged) / of_all) if of_all else 0.0,
        unknown=unknown,
    )


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
            **{name: float(value) if np.isfinite(value) else None for name, value in ends.items()},
            "level": self.level,
            "from_coefficients": p.from_coefficients if np.isfinite(p.from_coefficients) else None,
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
    predicted = predict_runs(result, runs, resampled, design, level, covariance=covariance, by=by)
    return RunPrediction(estimand=estimand, predicted=predicted, level=level, by_resamples=resampled is not None)


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
        return RunRange(None, "These runs give no covariance, and so no range.")
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
    said = f"{found.interval['level']:.0%} of such runs have {article} {fit.output.replace('_', ' ')} in {ends}"
    return f"{said}, {IF_THE_FORM_HOLDS}." if beyond else f"{said}."


def _each(resampled: Bootstrap) -> list[Any]:
    """The resampled laws one by one."""
    stacked = coefficients(resampled.laws)
    law = type(resampled.laws)
    return [law(**{name: float(v[i]) for name, v in stacked.items()}) for i in range(len(resampled.values))]
