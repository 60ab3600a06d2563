"""Estimate numbers from a fitted law, with standard errors, intervals and extrapolation factors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.flatten_util import ravel_pytree

from moejax.config import restored
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.fit.uncertainty.estimands import Estimand, Named, decision_estimands, where_in_words
from moejax.fit.uncertainty.extrapolation import RATIOS, Ranges, outside, where_decided
from moejax.fit.uncertainty.uncertainty import STANDARD, Spread
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.json_text import fields, finite
from moejax.laws import called
from moejax.laws.design import DERIVED, FIELDS, Design, design_from
from moejax.quantities import format

OPTIMAL_LOSS = "optimal_loss"
"""Name of the decision for the lowest loss."""
CONSTANT = "no fitted coefficient affects it"
"""Reason for a missing interval of a constant, such as the leverage of a dense model, which is 1 by definition."""
ROUNDING = 1e-12
"""Ratio of standard error to value below which a value is constant."""


@dataclass(frozen=True, kw_only=True)
class Estimate(Named):
    """A number computed from a fitted law, with its uncertainty."""

    value: float
    """Value under the fitted law; NaN if undefined."""
    error: float = math.nan
    """Standard error. It is 0 if no coefficient affects the value, and NaN if the runs do not determine the value."""
    interval: Interval | None = None
    """Interval from resampled fits if available, else from the standard error; None without either."""
    by: str = STANDARD
    """Method of the interval, as text after the level."""
    level: float = 0.9
    degrees_of_freedom: float = math.nan
    """Degrees of freedom of the interval's Student's t; NaN for an interval from resamples."""
    few: str = ""
    """Clause stating that there are too few draws: for an interval from resamples or, if ``interval`` is None, for any
    interval. Empty if they suffice."""
    reason: str = ""
    """Reason for a missing value, or for a missing error and interval; empty if nothing is missing."""
    assumes: str = ""
    """Assumption of the decision about quantities that are not given, as a clause; empty if there is none."""
    at_a_bound: bool = False
    """True if the value, or another value of the same decision, is at a bound of its search."""

    @property
    def is_constant(self) -> bool:
        """True if no fitted coefficient affects the value, which therefore needs no interval."""
        return self.reason == CONSTANT

    @property
    def without_interval(self) -> bool:
        """True if there are too few draws for an interval (``few``)."""
        return bool(self.few) and self.interval is None and not self.reason

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by field; non-finite numbers become null."""
        interval = None
        if self.interval is not None:
            more = {"uninformative": self.interval.uninformative, "by": self.by, "level": self.level}
            freedom = {} if math.isnan(self.degrees_of_freedom) else {"degrees_of_freedom": self.degrees_of_freedom}
            interval = finite(self.interval) | more | freedom
        error = self.error if self.error > 0 else None
        optional = {"at_a_bound": self.at_a_bound, "few": self.few, "reason": self.reason, "assumes": self.assumes}
        return {
            **self.naming,
            "value": finite(self.value),
            "standard_error": error,
            "interval": interval,
            **{name: one for name, one in optional.items() if one},
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Estimate:
        """Restore an estimate from ``to_json``."""
        interval, optional = plain["interval"], ("at_a_bound", "few", "reason", "assumes")
        known = {name: plain[name] for name in ("name", "symbol", "given", *optional) if name in plain}
        value, error = (math.nan if plain[name] is None else plain[name] for name in ("value", "standard_error"))
        if interval is not None:
            known |= {name: interval[name] for name in ("by", "level", "degrees_of_freedom") if name in interval}
            known["interval"] = restored(Interval, interval, "interval")
        return cls(value=value, error=error, **known)


@dataclass(frozen=True, kw_only=True)
class Beyond:
    """Given quantities whose answers are outside the fitted runs."""

    given: Mapping[str, float]
    times: Mapping[str, float]
    """Extrapolation factors from ``extrapolation.outside``, keyed by quantity."""

    @property
    def where(self) -> str:
        """Given quantities in readable form."""
        return where_in_words(self.given)


def estimate(
    result: FitResult, estimands: Sequence[Estimand], *, resampled: Bootstrap | None = None, level: float = 0.9
) -> tuple[Estimate, ...]:
    """Return the value of every estimand, with its standard error and interval.

    Values are computed from the fitted law. If the runs do not determine a value (``FitResult.unknown``), or if it is
    at a bound of the search, the estimate has a reason instead of an error and an interval.

    Intervals are too small if there are no more draws than coefficients (``few``). Without enough resampled draws, they
    come from standard errors; without enough draws for these either, an estimate has no error and no interval.

    Args:
      resampled: bootstrap for the intervals; by default the one that is stored with the fit, if any.

    Raises:
      UserError: the fit has no covariance, or ``level`` is not between 0 and 1.
    """
    if resampled is None and result.resamples is not None:
        resampled = Bootstrap.of(result)
    spreads = [result.spread(one.functional, allow_few=True) for one in estimands]
    bounds = _bounds(estimands, [float(spread.middle[0]) for spread in spreads])
    return tuple(
        _estimate(result, one, spread, bounds.get(number, ""), resampled, level)
        for number, (one, spread) in enumerate(zip(estimands, spreads, strict=True))
    )


def _estimate(
    result: FitResult, estimand: Estimand, spread: Spread, bound: str, resampled: Bootstrap | None, level: float
) -> Estimate:
    value = float(spread.middle[0])
    if reason := _reason(result, estimand, value):
        return Estimate(**estimand.naming, value=math.nan, reason=reason)
    reason = spread.unknown[0] or bound
    error = math.nan if reason else float(spread.errors[0])
    if error <= ROUNDING * abs(value):
        error, reason = 0.0, CONSTANT
    few = "" if resampled is None else resampled.few
    where, degrees_of_freedom, interval = STANDARD, math.nan, None
    if not reason and resampled is not None and not few:
        where, interval = resampled.method, resampled.interval(estimand.functional, level)
    elif not reason and result.few:
        few, error = result.few, math.nan
    elif not reason and error > 0:
        degrees_of_freedom = float(spread.degrees_of_freedom[0])
        # Decisions are positive: sizes, costs, losses or shares.
        is_share = estimand.is_share or (result.is_share and estimand.answers(result.output))
        (low,), (high,) = spread.share_ends(level) if is_share else spread.ends(level, True)
        interval = Interval(low=float(low), middle=value, high=float(high), deviation=error)
    return Estimate(
        **estimand.naming,
        value=value,
        error=interval.deviation if interval is not None and np.isfinite(interval.deviation) else error,
        interval=interval,
        by=where,
        level=level,
        degrees_of_freedom=degrees_of_freedom,
        few=few,
        reason=reason,
        assumes="" if estimand.rule is None else estimand.rule.assumes,
        at_a_bound=bool(bound),
    )


def _reason(result: FitResult, estimand: Estimand, value: float) -> str:
    if np.isfinite(value) and result.is_share and estimand.answers(result.output) and not 0 < value < 1:
        return f"the law predicts {value:.4g}, but a share of answers is between 0 and 1"
    if np.isfinite(value):
        return ""
    if estimand.rule is None:
        return "the law is NaN or infinite there"
    with float64():
        return estimand.rule.why_none(result.law, estimand.given)


def _bounds(estimands: Sequence[Estimand], values: Sequence[float]) -> dict[int, str]:
    """Return a sentence for each estimand whose decision is at a bound of the search, keyed by the estimand's index."""
    said: dict[tuple[int, ...], str] = {}
    keys = [(id(one.rule), *map(hash, one.given.items())) for one in estimands]
    for key, one, value in zip(keys, estimands, values, strict=True):
        if one.rule is not None and (end := one.rule.at_an_end(one.name, value)):
            said[key] = end
    return {number: said[key] for number, key in enumerate(keys) if key in said}


def intervals(
    result: FitResult, functional: Callable[[Any], Any], level: float = 0.9
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return every positive number of a functional (flattened), both ends of its interval, and reasons for NaN ends.

    The intervals are those of ``estimate``: from the stored bootstrap, or else from standard errors.

    Raises:
      UserError: the fit was made without its uncertainty, or ``level`` is not between 0 and 1.
    """
    spread = result.spread(functional)
    unknown = spread.unknown or ("",) * len(spread.middle)
    if result.bootstrap is None:
        return spread.middle, *spread.ends(level, True), unknown
    each = result.bootstrap.interval(lambda law: [*ravel_pytree(functional(law))[0]], level)
    ends = np.array([(one.low, one.high) for one in each]).T
    low, high = np.where(np.isfinite(ends), ends, np.nan)
    return spread.middle, low, high, unknown


def reach(given: Mapping[str, float], decided: Iterable[Estimate] = ()) -> dict[str, float]:
    """Return given and decided quantities, keyed by ``Design`` field."""
    decided_values = {one.name.removeprefix("optimal_"): one.value for one in decided if np.isfinite(one.value)}
    both = {**decided_values, **given}
    if "sparsity" in both:
        both["expert_expansion"] = 1 / (1 - both["sparsity"])
    if "active_share" in both:
        both["expansion"] = 1 / both["active_share"]
    if {"params_active", "expansion"} <= {*both}:
        both.setdefault("params_total", both["params_active"] * both["expansion"])
    return {name: value for name, value in both.items() if name in FIELDS or name in RATIOS}


def decided_design(
    result: FitResult, given: Mapping[str, float], level: float = 0.9
) -> tuple[Design, tuple[float, float, float] | None]:
    """Return the model and tokens that a fit decides at given quantities, and the optimal loss with both ends of its
    interval; None if the law decides no loss. The interval includes the uncertainty of the optimal sizes.

    Raises:
      UserError: the law has no decision for these quantities, or it decides no sizes and tokens.
    """
    decided = estimate(result, decision_estimands(type(result.law), given), level=level)
    values = {name: value for name, value in reach(given, decided).items() if name in FIELDS}
    if "tokens" not in values:
        raise UserError(f"{called(type(result.law))} decides no tokens at {where_in_words(given)}; give flops too.")
    loss = next((one for one in decided if one.name == OPTIMAL_LOSS), None)
    if loss is None:
        return design_from(values), None
    low, high = (math.nan, math.nan) if loss.interval is None else (loss.interval.low, loss.interval.high)
    return design_from(values), (loss.value, low, high)


def beyond(values: Mapping[str, float], runs: Runs, reads: Container[str] = ()) -> dict[str, float]:
    """Return the factors by which a design's quantities are outside the fitted runs, keyed by quantity
    (``extrapolation.outside``)."""
    return outside(values, where_decided(runs, reads))


def beyond_each(decided: Sequence[Estimate], fitted: Ranges) -> tuple[Beyond, ...]:
    """Return the given quantities whose decisions lie outside the ranges of fitted runs."""
    blocks = {tuple(one.given.items()): one.given for one in decided}.values()
    far = [(given, outside(reach(given, [d for d in decided if d.given == given]), fitted)) for given in blocks]
    return tuple(Beyond(given=given, times=times) for given, times in far if times)


@dataclass(frozen=True, kw_only=True)
class RunPrediction(Named):
    """A prediction for one new run, with its prediction interval."""

    value: float
    """Predicted output; NaN if the law gives an invalid value."""
    low: float
    high: float
    """Ends of the prediction interval: NaN if unknown, infinite if unbounded."""
    level: float
    from_coefficients: float
    """Share of the variance that is due to the coefficients."""
    by: str
    """Method of the coefficients' share, as text after the level."""
    reason: str = ""
    """Reason for a missing prediction interval; empty if there is one."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by field; the key of the value is the output's name. Non-finite values become
        null."""
        reason = {"reason": self.reason} if self.reason else {}
        return {**finite(fields(self, "value", "reason")), self.name: finite(self.value), **reason}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> RunPrediction:
        """Restore a prediction from ``to_json``."""
        known = {"reason": "", **plain, "value": plain[plain["name"]]}
        for name in ("value", "low", "high", "from_coefficients"):
            known[name] = math.nan if known[name] is None else known[name]
        return cls(**{field.name: known[field.name] for field in dataclasses.fields(cls)})


def with_expansion_of_runs(decided: Sequence[Estimate], runs: Runs) -> tuple[Estimate, ...]:
    """Return the decisions; an assumption on the parameters at a sparsity also names the expansion of the runs with
    this sparsity, if it differs."""
    design = runs.design
    lacking = any(getattr(design, name) is None for ratio in ("sparsity", "expansion") for name in DERIVED[ratio])
    if lacking or not any(one.assumes for one in decided):
        return tuple(decided)
    expansion, sparsity = np.asarray(design.expansion), np.asarray(design.sparsity)

    def of_runs(one: Estimate) -> Estimate:
        if not one.assumes or "sparsity" not in one.given:
            return one
        same = np.isclose(sparsity, one.given["sparsity"], rtol=0, atol=1e-3)
        if not same.any() or np.allclose(expansion[same], 1 / (1 - one.given["sparsity"]), rtol=0.01):
            return one
        said = f"the fitted runs with this sparsity have an expansion of {format(float(np.median(expansion[same])), 3)}"
        return dataclasses.replace(one, assumes=f"{one.assumes} ({said})")

    return tuple(map(of_runs, decided))


def predict_run(
    result: FitResult, estimand: Estimand, resampled: Bootstrap | None = None, level: float = 0.9
) -> RunPrediction:
    """Return the prediction interval of the run that an estimand describes.

    The part of the variance that comes from the coefficients is computed from the resampled laws; from the fit's
    covariance if there are no resamples, or if the draws do not outnumber the coefficients.

    Raises:
      UserError: ``level`` is not between 0 and 1, or there are no resamples and the fit has no covariance.
    """
    used = result.bootstrap if resampled is None or resampled.few else resampled
    spread = None if used is None else used.spread
    predicted = result.prediction_intervals(design_from(estimand.given), level, spread)
    return RunPrediction(
        **estimand.naming,
        value=float(predicted.loss[0]),
        low=float(predicted.low[0]),
        high=float(predicted.high[0]),
        level=level,
        from_coefficients=predicted.from_coefficients,
        by=STANDARD if used is None else used.method,
        reason=predicted.unknown[0],
    )


IF_THE_FORM_HOLDS = (
    "if the law's form holds that far beyond the fitted runs, since it only includes the scatter of the fitted runs"
)
"""Assumption of intervals outside the fitted runs, which the fitted runs cannot test."""
