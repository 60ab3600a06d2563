"""Build the ``Result`` of a fit and its answers, which ``moejax fit`` prints and ``moejax report`` shows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moejax.fit.fit_result import FitResult
from moejax.fit.selection import held_out_runs, holdout
from moejax.fit.uncertainty.estimands import where_in_words
from moejax.fit.uncertainty.estimates import STANDARD
from moejax.fit.uncertainty.extrapolation import sentences
from moejax.fit.uncertainty.prediction import IF_THE_FORM_HOLDS
from moejax.interval import Interval, in_percent
from moejax.laws.law import unit_of
from moejax.quantities import format
from moejax.result import NOT_DETERMINED, Column, Result, Table, percent
from moejax.wording import listed

Found = Mapping[str, Any]


def summary(fit: FitResult, level: float = 0.9, /, **found: Any) -> Result:
    """Return the fit, its coefficients with standard errors and intervals at ``level``, and further results.

    Args:
      found: plain data under the names of ``fit.json``, such as ``held_out``, ``bootstrap`` and ``decisions``.
    """
    alone = fit.summary(level)
    return dataclasses.replace(
        alone,
        warnings=[
            *holdout.warnings(
                found.get("held_out", ()),
                fit.metrics.rmse_of(fit.output),
                fit.output,
                found.get("held_out_runs", {}).get("runs", ()),
            ),
            *found.get("sweeps", {}).get("warnings", ()),
            *alone.warnings,
        ],
        tables=[*alone.tables, *tables({**found, "output": fit.output})],
        data=alone.data | found,
    )


def tables(found: Found) -> list[Table]:
    """Return the tables of all results besides the fit."""
    return [table(found) for name, table in TABLES.items() if found.get(name)]


def held_out(found: Found) -> Table:
    """Return the errors of each split, and over all of them."""
    rows = [[s["name"], *_errors(s["errors"]), s["fitted"]["rmse"]] for s in found["held_out"]]
    if "held_out_together" in found:
        rows.append(["all of these", *_errors(found["held_out_together"]), None])
    columns = (
        Column("held out"),
        Column("runs"),
        *(Column(name, ".5f") for name in ("MAE", "RMSE", "R²")),
        Column("Huber", ".3g"),
        Column("largest", percent(3)),
        Column("RMSE fitted", ".5f"),
    )
    return Table(
        f"Errors on runs that were not fitted, {unit_of(found.get('output', 'loss'))}", columns, rows, key="held-out"
    )


FARTHEST = 12
"""Number of held-out runs in the terminal; the file has all of them."""


def _each_held_out(found: Found) -> Table:
    """Return the held-out runs with the largest errors, and the number within their ranges."""
    tested = found["held_out_runs"]
    shown = held_out_runs.farthest(tested["runs"], FARTHEST)
    several = len({one["split"] for one in tested["runs"]}) > 1
    columns = (
        Column("run", words=True),
        *([Column("held out", words=True)] if several else []),
        *(Column(name, _five) for name in ("measured", "predicted", "low", "high")),
        Column("half-ranges", "+.2f"),
    )
    rows = [
        [
            one["run"],
            *([one["split"]] if several else []),
            *(one[name] for name in ("measured", "predicted", "low", "high", "half_ranges")),
        ]
        for one in shown
    ]
    notes = [("! " if tested["too_few"] else "") + tested["said"]]
    if len(tested["runs"]) > len(shown):
        notes.append(f"These are the {len(shown)} farthest of {len(tested['runs']):,}; held_out.csv (--out) has all.")
    notes += [f"! There is no range for some runs: {why}." for why in dict.fromkeys(_whys(tested))]
    unit = unit_of(found.get("output", "loss"))
    title = f"Runs that were not fitted{f', {unit}' if unit else ''}: range at {in_percent(tested['level'])}"
    return Table(title, columns, rows, notes, key="held-out-runs")


def _whys(tested: Found) -> list[str]:
    return [one["reason"] for one in tested["runs"] if one["reason"]]


def resampled(found: Found) -> Table:
    """Return the coefficients with the intervals of their resamples."""
    resamples = found["bootstrap"]
    columns = (
        Column("coefficient"),
        Column("standard deviation", ".4g"),
        Column("median", ".4g"),
        Column(f"{in_percent(resamples['level'])} interval"),
        Column(""),
    )
    rows = [
        [name, one["deviation"], one["middle"], _interval(one, "{:.4g}".format), _verdict(one)]
        for name, one in resamples["coefficients"].items()
    ]
    notes = []
    if few := resamples.get("few"):
        notes.append(f"! {few}: these intervals are too small.")
    if unfinished := resamples["unfinished"]:
        notes.append(_unfinished(unfinished, resamples["resamples"]))
    title = f"Coefficients over {resamples['resamples']:,} resamples by {resamples['by']}"
    return Table(title, columns, rows, notes, key="resamples")


MANY_UNFINISHED = 0.1
"""Share of unfinished resamples above which their intervals describe the search and not the runs."""


def _unfinished(unfinished: int, resamples: int) -> str:
    said = f"! {unfinished} of {resamples:,} resamples were stopped before they converged"
    if unfinished <= MANY_UNFINISHED * resamples:
        return f"{said}, with coefficients on the way to where these runs cannot tell them apart."
    return (
        f"{said}: the intervals say how far a search goes in so many steps, and not what the runs allow, which may be "
        f"more or less. Hold a coefficient that is not determined (--fix), or fit a law of fewer."
    )


def _sweeps(found: Found) -> Table:
    """Return the coefficients by every reduction of sweeps to one row each."""
    sweeps = found["sweeps"]
    columns = (
        Column("coefficient"),
        *(Column(f"{name} ({way['runs']})") for name, way in sweeps["ways"].items()),
    )
    each = [way["coefficients"] for way in sweeps["ways"].values()]
    names = dict.fromkeys(name for one in each for name in one)
    rows = [[name, *(_with_ends(one.get(name)) for one in each)] for name in names]
    title = f"Through the sweeps in three ways, with {in_percent(sweeps['level'])} intervals"
    return Table(title, columns, rows, key="sweeps")


def _with_ends(one: Found | None) -> str | None:
    if one is None:
        return None
    low, high = ("–" if one[end] is None else format(one[end]) for end in ("low", "high"))
    return f"{format(one['value'])} [{low}, {high}]"


def _errors(of: Found) -> list[Any]:
    return [of[name] for name in ("runs", "mae", "rmse", "r_squared", "huber", "max_relative_error")]


def _decisions(found: Found) -> Table:
    decided = found["decisions"]
    intervals = (one["interval"] for one in decided if one["interval"])
    by, level = next(((interval["by"], interval["level"]) for interval in intervals), ("", 0.0))
    columns = (
        Column("decided"),
        Column("at", words=True),
        Column("value", format),
        Column("std err", lambda value: format(value, 3)),
        Column("df", ".2g"),
        Column(f"{in_percent(level)} interval by {by}"),
        Column(""),
    )
    few = dict.fromkeys(one["few"] for one in decided if "few" in one)
    notes = [f"! {words}: intervals by resamples would be too small, and are not shown." for words in few]
    if by == STANDARD:
        notes.append("Intervals are Student's t with df degrees of freedom.")
    notes += _reasons(decided)
    return Table("Decisions", columns, [_decision(one) for one in decided], notes, key="decisions")


def _decision(one: Found) -> list[Any]:
    named = [_named(one), where_in_words(one["given"])]
    if one["value"] is None:
        return [*named, "no answer", None, None, None, None]
    unknown = "at a bound" if one.get("at_a_bound") else NOT_DETERMINED if "reason" in one else "not known"
    error = unknown if one["standard_error"] is None else one["standard_error"]
    interval = one["interval"] or {}
    ends = _interval(interval) if interval else None
    return [*named, one["value"], error, interval.get("degrees_of_freedom"), ends, _verdict(interval)]


def _reasons(answers: Sequence[Found]) -> list[str]:
    """Return a sentence for each reason why answers have no interval."""
    told: dict[tuple[str, str, str], list[str]] = {}
    for one in answers:
        if "reason" in one:
            lacking = "answer" if one.get("value", one.get(one["name"], 0.0)) is None else "interval"
            told.setdefault((lacking, where_in_words(one["given"]), one["reason"]), []).append(_named(one))
    return [
        f"! There is no {lacking} for {listed(names)}{f' at {where}' if where else ''}: {why}."
        for (lacking, where, why), names in told.items()
    ]


def _predictions(found: Found) -> Table:
    columns = (
        Column("predicted"),
        Column("at", words=True),
        *(Column(name, _five) for name in ("low", "value", "high")),
        Column("variance from coefficients", percent(0)),
    )
    far = [one["given"] for one in found.get("beyond", [])]
    (first, *_), rows, notes = found["predictions"], [], []
    for one in found["predictions"]:
        where, ends = where_in_words(one["given"]), [one["low"], one[one["name"]], one["high"]]
        rows.append([_named(one), where, *ends, one["from_coefficients"]])
        if one["given"] in far and "reason" not in one:
            notes.append(f"The range at {where} holds {IF_THE_FORM_HOLDS}.")
    notes += _reasons(found["predictions"])
    title = "Predicted"
    if any("reason" not in one for one in found["predictions"]):
        notes.append(f"What of the variance is not from coefficients (by {first['by']}) is lack of fit.")
        title += f": {in_percent(first['level'])} of such runs lie between low and high"
    return Table(title, columns, rows, notes, key="predictions")


def _beyond(found: Found) -> Table:
    columns = (Column("asked at"), Column("", words=True))
    rows = [
        [where_in_words(one["given"]) or "the coefficients alone", " ".join(sentences(one["times"]))]
        for one in found["beyond"]
    ]
    return Table("Outside the fitted runs", columns, rows, key="beyond")


def _profiles(found: Found) -> Table:
    columns = (
        Column("asked"),
        *(Column(name, _five) for name in ("low", "value", "high")),
        Column("level", percent(0)),
        Column("", words=True),
    )
    return Table("Profiles", columns, [_profile(one) for one in found["profiles"]], key="profiles")


def _profile(one: Found) -> list[Any]:
    if "reason" in one:
        return [_asked(one), None, None, None, None, f"no profile. {one['reason']}"]
    ends = {"smaller": one["low"], "larger": one["high"]}
    low, high = ("open" if end is None else end for end in ends.values())
    not_rejected = [f"no {side}" for side, end in ends.items() if end is None]
    said = f"these runs reject {' and '.join(not_rejected)} value" if not_rejected else ""
    return [_asked(one), low, one["middle"], high, one["level"], said]


def _influence(found: Found) -> Table:
    columns = (
        Column("asked"),
        Column("without", words=True),
        *(Column(name, _five) for name in ("refitted", "predicted")),
        Column("change", lambda value: f"{value:+.1%}"),
    )
    rows = [row for one in found["influence"] for row in _deciding(one)]
    return Table("Runs that decide most", columns, rows, key="decisive")


def _deciding(one: Found) -> list[list[Any]]:
    if "reason" in one:
        return [[_asked(one), f"no influence. {one['reason']}", None, None, None]]
    value, without = one["value"], [f"row {row} ({run})" for row, run in zip(one["rows"], one["runs"], strict=True)]
    numbers = [*zip(one["refitted"], one["predicted"], strict=True), (one["without_all"], None)]
    changes = [number / value - 1 if number is not None and value else None for number, _ in numbers]
    each = zip([*without, "all of these"], numbers, changes, strict=True)
    return [
        [_asked(one), "none", value, None, None],
        *(["", run, "no answer" if refit is None else refit, guess, by] for run, (refit, guess), by in each),
    ]


def _named(one: Found) -> str:
    return f"{one['name']} ({one['symbol']})"


def _asked(one: Found) -> str:
    where = where_in_words(one["given"])
    return f"{_named(one)} at {where}" if where else _named(one)


def _interval(one: Found, write: Callable[[float], str] = format) -> str:
    low, high = (math.nan if one[end] is None else one[end] for end in ("low", "high"))
    return Interval(low=low, middle=math.nan, high=high, deviation=math.nan, undefined=one["undefined"]).bounds(write)


def _verdict(one: Found) -> str:
    return NOT_DETERMINED if one.get("uninformative") else ""


def _five(value: float) -> str:
    return format(value, 5)


TABLES: dict[str, Callable[[Found], Table]] = {
    "held_out": held_out,
    "held_out_runs": _each_held_out,
    "sweeps": _sweeps,
    "bootstrap": resampled,
    "decisions": _decisions,
    "predictions": _predictions,
    "beyond": _beyond,
    "profiles": _profiles,
    "influence": _influence,
}
"""Table functions by the name of their result in ``fit.json``, in reading order."""
