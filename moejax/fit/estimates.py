"""Estimates: what is asked of a fitted law, with standard errors and intervals, and how far it lies beyond the runs."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.fit.bootstrap import Bootstrap, too_few
from moejax.fit.covariance import uncertainty
from moejax.fit.estimands import Estimand
from moejax.fit.extrapolation import RATIOS, outside, where_decided
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.json_text import finite
from moejax.laws.design import FIELDS


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One estimand under a fitted law."""

    estimand: Estimand
    value: float
    """NaN if the law gives no number there."""
    error: float
    """Standard deviation of what the interval is of; 0 where no coefficient moves it, as at a bound; NaN where the runs
    give none."""
    interval: Interval | None
    """Over resampled fits if there are any, else by the standard error; None where there is neither."""
    by: str
    """Where the interval is from."""
    degrees_of_freedom: float = math.nan
    """Degrees of freedom of the interval's Student's t; NaN where it is of resamples."""
    few: str = ""
    """Why the interval is not of the resamples that there are."""
    reason: str = ""
    """Why there is no value, or neither error nor interval; empty if there are."""
    at_a_bound: bool = False
    """Whether it, or what is decided with it, lies where the search for it ends."""


def estimate(
    result: FitResult,
    runs: Runs | None,
    estimands: Iterable[Estimand],
    *,
    covariance: str = "sandwich",
    by: str = "group",
    resampled: Bootstrap | None = None,
    level: float = 0.9,
) -> list[Estimate]:
    """Every estimand under the fitted law, with its standard error and its interval.

    The value is always that of the fitted law. Where the runs do not tell it (``FitResult.unknown``), or it lies at a
    bound of the search, it has neither, and the reason stands in their place.

    Resamples of no more draws than there are coefficients give intervals that are too small: those of standard errors
    stand in their place, whose Student's t knows how few draws there are.

    Args:
      runs: those of the fit; None for a fit whose own covariance serves.

    Raises:
      UserError: the runs are not those of the fit, it holds no covariance, or an option makes no sense.
    """
    known, estimates = None if runs is None else uncertainty(result, runs, kind=covariance, by=by), []
    few = "" if resampled is None else too_few(result, resampled.draws, resampled.by)
    estimands = list(estimands)
    values = [
        float((result.spread(one.functional).middle if known is None else known.at.evaluate(one.functional)[0])[0])
        for one in estimands
    ]
    bounds = _bounds(estimands, values)
    for number, (estimand, value) in enumerate(zip(estimands, values, strict=True)):
        error, interval, where, degrees_of_freedom = math.nan, None, STANDARD, math.nan
        reason, spread = _reason(result, estimand, value), None
        if not reason:
            of_it = estimand.functional
            spread = result.spread(of_it) if known is None else known.spread(of_it)[0]
            reason = spread.unknown[0] or bounds.get(number, "")
        if spread is not None and not reason:
            error = float(spread.errors[0])
            # What a law decides is above 0: a size, a cost, a loss, or a share.
            is_share = estimand.is_share or (result.is_share and estimand.answers(result.output))
            (low,), (high,) = spread.share_ends(level) if is_share else spread.ends(level, True)
            if error > 0:
                degrees_of_freedom = float(spread.degrees_of_freedom[0])
                interval = Interval(low=float(low), middle=value, high=float(high), deviation=error, undefined=0.0)
            elif error == 0:
                reason = "no coefficient that was fitted moves it"
        if resampled is not None and not few and not reason:
            where, degrees_of_freedom, interval = RESAMPLES, math.nan, resampled.interval(estimand.functional, level)
        at_a_bound = error == 0 or number in bounds
        if interval is not None and np.isfinite(interval.deviation):
            error = interval.deviation
        one = Estimate(
            estimand=estimand,
            value=value if spread is not None else math.nan,
            error=error,
            interval=interval,
            by=where,
            degrees_of_freedom=degrees_of_freedom,
            few=few,
            reason=reason,
            at_a_bound=at_a_bound,
        )
        estimates.append(one)
    return estimates


def _reason(result: FitResult, estimand: Estimand, value: float) -> str:
    """Why a law gives no number; empty where it does."""
    if np.isfinite(value) and result.is_share and estimand.answers(result.output) and not 0 < value < 1:
        return f"the law gives {value:.4g}, and a share of answers lies between 0 and 1"
    if np.isfinite(value):
        return ""
    if estimand.rule is None:
        return "the law gives no finite number there"
    with float64():
        return estimand.rule.why_none(result.law, estimand.given)


def _bounds(estimands: Sequence[Estimand], values: Sequence[float]) -> dict[int, str]:
    """By number of the estimand: that what is decided by its rule at its place lies at an end of the search."""
    said: dict[tuple[int, ...], str] = {}
    keys = [(id(one.rule), *map(hash, one.given.items())) for one in estimands]
    for key, one, value in zip(keys, estimands, values, strict=True):
        if one.rule is not None and (end := one.rule.at_an_end(one.name, value)):
            said[key] = end
    return {number: said[key] for number, key in enumerate(keys) if key in said}


STANDARD, RESAMPLES = "standard errors", "resamples"


def reach(given: Mapping[str, float], decided: Iterable[Estimate] = ()) -> dict[str, float]:
    """What is given or decided, in the words of a Design."""
    decided_values = {
        one.estimand.name.removeprefix("optimal_"): one.value for one in decided if np.isfinite(one.value)
    }
    both = {**decided_values, **given}
    if "sparsity" in both:
        both["expert_expansion"] = 1 / (1 - both["sparsity"])
    if "active_share" in both:
        both["expansion"] = 1 / both["active_share"]
    return {name: value for name, value in both.items() if name in FIELDS or name in RATIOS}


def beyond(values: Mapping[str, float], runs: Runs, reads: Container[str] = ()) -> dict[str, float]:
    """How far some numbers of a design lie outside those of the fitted runs, as ``extrapolation.outside`` says."""
    return outside(values, where_decided(runs, reads))


def beyond_each(decided: Sequence[Estimate], runs: Runs) -> list[dict[str, Any]]:
    """For every place where something is decided outside the runs, as plain data: ``given``, ``times``."""
    blocks = {tuple(one.estimand.given.items()): one.estimand.given for one in decided}.values()
    far = [(given, beyond(reach(given, [d for d in decided if d.estimand.given == given]), runs)) for given in blocks]
    return [{"given": dict(given), "times": times} for given, times in far if times]


def to_json(decided: Iterable[Estimate], level: float = 0.9) -> list[dict[str, Any]]:
    """As plain data; what is not finite is null."""
    return [
        {
            "name": one.estimand.name,
            "symbol": one.estimand.symbol,
            "given": dict(one.estimand.given),
            "value": finite(one.value),
            "standard_error": one.error if one.error > 0 else None,
            "interval": one.interval
            and finite(one.interval)
            | {"uninformative": one.interval.uninformative, "by": one.by, "level": level}
            | ({"degrees_of_freedom": one.degrees_of_freedom} if np.isfinite(one.degrees_of_freedom) else {}),
        }
        | ({"at_a_bound": True} if one.at_a_bound else {})
        | ({"few": one.few} if one.few else {})
        | ({"reason": one.reason} if one.reason else {})
        for one in decided
    ]
