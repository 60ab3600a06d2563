"""Estimate numbers of a fitted law, with standard errors, intervals and the distance from the fitted runs."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.fit.uncertainty.estimands import Estimand
from moejax.fit.uncertainty.extrapolation import RATIOS, outside, where_decided
from moejax.fit.uncertainty.intervals import Spread
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.json_text import finite
from moejax.laws.design import FIELDS


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One estimand under a fitted law."""

    estimand: Estimand
    value: float
    """Value under the fitted law; NaN if undefined."""
    error: float
    """Standard error. 0 if no coefficient affects the value, as at a bound; NaN if the runs do not determine it."""
    interval: Interval | None
    """Interval from resampled fits if there are any, else from the standard error; None without either."""
    by: str
    """Source of the interval."""
    degrees_of_freedom: float = math.nan
    """Degrees of freedom of the interval's Student's t; NaN for an interval from resamples."""
    few: str = ""
    """Reason why existing resamples are not used for the interval."""
    reason: str = ""
    """Reason for a missing value, or for a missing error and interval; empty if nothing is missing."""
    at_a_bound: bool = False
    """True if the value, or another one of the same decision, lies at a bound of its search."""


def estimate(
    result: FitResult, estimands: Sequence[Estimand], *, resampled: Bootstrap | None = None, level: float = 0.9
) -> list[Estimate]:
    """Return every estimand under the fitted law, with its standard error and its interval.

    The value is always that of the fitted law. An estimate has a reason instead of an error and an interval if the runs
    do not determine it (``FitResult.unknown``) or it lies at a bound of the search.

    Intervals from resamples are too small if there are no more draws than coefficients. Intervals from standard errors
    are then used, whose Student's t accounts for the number of draws.

    Raises:
      UserError: the fit holds no covariance, or ``level`` is not between 0 and 1.
    """
    spreads = [result.spread(one.functional) for one in estimands]
    bounds = _bounds(estimands, [float(spread.middle[0]) for spread in spreads])
    return [
        _estimate(result, one, spread, bounds.get(number, ""), resampled, level)
        for number, (one, spread) in enumerate(zip(estimands, spreads, strict=True))
    ]


def _estimate(
    result: FitResult, estimand: Estimand, spread: Spread, bound: str, resampled: Bootstrap | None, level: float
) -> Estimate:
    value = float(spread.middle[0])
    if reason := _reason(result, estimand, value):
        return Estimate(estimand=estimand, value=math.nan, error=math.nan, interval=None, by=STANDARD, reason=reason)
    reason = spread.unknown[0] or bound
    error = math.nan if reason else float(spread.errors[0])
    if error == 0:
        reason = "no coefficient that was fitted moves it"
    few = "" if resampled is None else resampled.few
    where, degrees_of_freedom, interval = STANDARD, math.nan, None
    if not reason and resampled is not None and not few:
        where, interval = RESAMPLES, resampled.interval(estimand.functional, level)
    elif not reason and error > 0:
        degrees_of_freedom = float(spread.degrees_of_freedom[0])
        # Decisions are positive: sizes, costs, losses or shares.
        is_share = estimand.is_share or (result.is_share and estimand.answers(result.output))
        (low,), (high,) = spread.share_ends(level) if is_share else spread.ends(level, True)
        interval = Interval(low=float(low), middle=value, high=float(high), deviation=error, undefined=0.0)
    return Estimate(
        estimand=estimand,
        value=value,
        error=interval.deviation if interval is not None and np.isfinite(interval.deviation) else error,
        interval=interval,
        by=where,
        degrees_of_freedom=degrees_of_freedom,
        few=few,
        reason=reason,
        at_a_bound=bool(bound) or error == 0,
    )


def _reason(result: FitResult, estimand: Estimand, value: float) -> str:
    """Return the reason why a law gives no valid number; empty if it does."""
    if np.isfinite(value) and result.is_share and estimand.answers(result.output) and not 0 < value < 1:
        return f"the law gives {value:.4g}, and a share of answers lies between 0 and 1"
    if np.isfinite(value):
        return ""
    if estimand.rule is None:
        return "the law gives no finite number there"
    with float64():
        return estimand.rule.why_none(result.law, estimand.given)


def _bounds(estimands: Sequence[Estimand], values: Sequence[float]) -> dict[int, str]:
    """Return, by index of the estimand, a sentence if its decision lies at a bound of the search."""
    said: dict[tuple[int, ...], str] = {}
    keys = [(id(one.rule), *map(hash, one.given.items())) for one in estimands]
    for key, one, value in zip(keys, estimands, values, strict=True):
        if one.rule is not None and (end := one.rule.at_an_end(one.name, value)):
            said[key] = end
    return {number: said[key] for number, key in enumerate(keys) if key in said}


STANDARD, RESAMPLES = "standard errors", "resamples"


def reach(given: Mapping[str, float], decided: Iterable[Estimate] = ()) -> dict[str, float]:
    """Return given and decided quantities by their names in Design."""
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
    """Return the factors by which quantities of a design lie outside the fitted runs, as in
    ``extrapolation.outside``."""
    return outside(values, where_decided(runs, reads))


def beyond_each(decided: Sequence[Estimate], runs: Runs) -> list[dict[str, Any]]:
    """Return, as plain data (``given``, ``times``), the given quantities whose decisions lie outside the runs."""
    blocks = {tuple(one.estimand.given.items()): one.estimand.given for one in decided}.values()
    far = [(given, beyond(reach(given, [d for d in decided if d.estimand.given == given]), runs)) for given in blocks]
    return [{"given": dict(given), "times": times} for given, times in far if times]


def to_json(decided: Iterable[Estimate], level: float = 0.9) -> list[dict[str, Any]]:
    """Return plain data; non-finite numbers become null."""
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
