"""Answers of a fitted law with their uncertainty: what is decided, and how far that hangs on these runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.fit.answers import Answer, where_in_words
from moejax.fit.bootstrap import Bootstrap, Interval
from moejax.fit.covariance import standard_errors
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import SIZES
from moejax.fit.metrics import plain
from moejax.fit.optimum import optimum
from moejax.fit.runs import Runs
from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.quantities import format


@dataclass(frozen=True, kw_only=True)
class Decided:
    """One answer."""

    answer: Answer
    value: float
    """NaN if the law has no answer there."""
    error: float
    """Standard error; NaN where no coefficient moves the answer, as at a bound of what is searched."""
    interval: Interval | None
    """Over resampled fits, if there are any."""


def decide(
    result: FitResult,
    runs: Runs,
    answers: Iterable[Answer],
    *,
    covariance: str = "sandwich",
    by: str = "group",
    resampled: Bootstrap | None = None,
    level: float = 0.9,
) -> list[Decided]:
    """Every answer under the fitted law, with its standard error and, given resamples, its interval.

    Raises:
      ValueError: the runs are not those of the fit, or an option makes no sense.
    """
    at = optimum(result, runs)
    found = []
    for answer in answers:
        value = float(at.decide(answer.of)[0][0])
        error = float(standard_errors(result, runs, answer.of, kind=covariance, by=by)) if np.isfinite(value) else 0.0
        interval = None if resampled is None else resampled.interval(answer.of, level)
        found.append(Decided(answer=answer, value=value, error=error if error > 0 else float("nan"), interval=interval))
    return found


def table(decided: Sequence[Decided], runs: Runs, level: float = 0.9) -> str:
    """A line per answer, in blocks by where they are asked, and how far that is beyond the runs."""
    lines = []
    for given in {tuple(one.answer.given.items()): one.answer.given for one in decided}.values():
        block = [one for one in decided if one.answer.given == given]
        at = where_in_words(given)
        resamples = f"{level:.0%} interval of resamples" if block[0].interval else "(--bootstrap adds intervals)"
        lines += [
            "",
            f"{'decided at ' + at if at else 'decided by the coefficients alone':<44}{'value':>12}{'std err':>12}   "
            f"{resamples}",
        ]
        lines += [_line(one) for one in block]
        lines += [f"! {sentence}" for sentence in beyond_in_words(reach(given, block), runs)]
    return "\n".join(lines[1:])


def _line(one: Decided) -> str:
    name = f"{one.answer.name} ({one.answer.symbol})"
    if not np.isfinite(one.value):
        return f"{name:<44}{'no answer':>12}"
    error = format(one.error, 3) if np.isfinite(one.error) else "at a bound"
    return f"{name:<44}{format(one.value):>12}{error:>12}   {in_words(one.interval) if one.interval else ''}".rstrip()


def in_words(found: Interval) -> str:
    """An interval in numbers as people write them; an open end, and one that says nothing, in words."""
    low = format(found.low) if np.isfinite(found.low) else "open below"
    high = format(found.high) if np.isfinite(found.high) else "open above"
    text = f"[{low}, {high}]"
    if found.undefined:
        text += f", no answer in {found.undefined:.0%} of resamples"
    return f"{text} (not determined by these runs)" if found.says_nothing else text


def reach(given: Mapping[str, float], decided: Iterable[Decided] = ()) -> dict[str, float]:
    """The sizes that are given or decided."""
    found = {one.answer.name.removeprefix("optimal_"): one.value for one in decided}
    return {name: value for name, value in {**found, **given}.items() if name in SIZES}


def beyond_in_words(sizes: Mapping[str, float], runs: Runs) -> list[str]:
    """The same as a sentence, if there is one to say."""
    larger = times_in_words(beyond(sizes, runs))
    return [f"Beyond the largest fitted run: {larger}."] if larger else []


def times_in_words(times: Mapping[str, float]) -> str:
    """``5.19 times in params_active, 95.4 times in tokens``."""
    return ", ".join(f"{factor:.3g} times in {name}" for name, factor in times.items())


def beyond(sizes: Mapping[str, float], runs: Runs) -> dict[str, float]:
    """How many times larger some sizes are than the largest that were fitted, where they are larger."""
    kept = runs.weight > 0
    design = runs.design
    spent = design.flops
    if design.params_active is not None and design.tokens is not None:
        spent = FLOPS_PER_PARAM_AND_TOKEN * design.params_active * design.tokens
    values = {name: getattr(design, name) for name in SIZES} | {"flops": spent}
    far = {name: size / float(values[name][kept].max()) for name, size in sizes.items() if values[name] is not None}
    return {name: factor for name, factor in far.items() if factor > 1}


def beyond_each(decided: Sequence[Decided], runs: Runs) -> list[dict[str, Any]]:
    """For every place where something is decided beyond the runs, as plain data: ``given``, ``times``."""
    blocks = {tuple(one.answer.given.items()): one.answer.given for one in decided}.values()
    far = [(given, beyond(reach(given, [d for d in decided if d.answer.given == given]), runs)) for given in blocks]
    return [{"given": dict(given), "times": times} for given, times in far if times]


def to_json(decided: Iterable[Decided]) -> list[dict[str, Any]]:
    """As plain data; what is not finite is null."""
    return [
        {
            "name": one.answer.name,
            "symbol": one.answer.symbol,
            "given": dict(one.answer.given),
            "value": one.value if np.isfinite(one.value) else None,
            "standard_error": one.error if np.isfinite(one.error) else None,
            "interval": one.interval and plain(one.interval) | {"says_nothing": one.interval.says_nothing},
        }
        for one in decided
    ]
