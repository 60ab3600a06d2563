"""What ``moejax fit`` wrote beside a fit, as tables: held-out errors, decisions, predictions, profiles, influence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moejax.fit.answers import where_in_words
from moejax.fit.extrapolation import in_words
from moejax.quantities import format
from moejax.wording import without_empty

NOT_DETERMINED = "not determined"
"""What an answer is called whose interval says nothing."""


@dataclass(frozen=True)
class Table:
    """A titled table of texts."""

    name: str
    title: str
    headings: list[str]
    rows: list[list[str]]


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The tables of what a ``fit.json`` holds, errors on held-out runs first."""
    made = (
        Table(
            "held-out",
            "Errors on runs that were not fitted, nats/token",
            ["held out", "runs", "RMSE", "RMSE fitted", "MAE", "R²", "largest"],
            _held_out(found),
        ),
        Table("decisions", "Decisions", ["", "value", "standard error", _interval_of(found), ""], _decisions(found)),
        Table("predictions", "Predicted runs", ["", "low", "predicted", "high", "level"], _predictions(found)),
        Table("profiles", "Profiles", ["", "low", "fitted", "high", "level"], _profiles(found)),
        Table("decisive", "Runs that decide most", ["", "left out", "refitted", "foretold"], _influence(found)),
        Table("beyond", "Outside the fitted runs", ["asked at", "times the largest, or the smallest"], _beyond(found)),
    )
    return [Table(one.name, one.title, *without_empty(one.headings, one.rows)) for one in made if one.rows]


def verdict(interval: Mapping[str, Any] | None) -> str:
    """Whether a resampled interval determines anything."""
    return NOT_DETERMINED if interval and interval.get("says_nothing") else ""


def range_of(interval: Mapping[str, Any] | None) -> str:
    """A resampled interval in words; a dash if there is none."""
    if not interval:
        return "–"
    undefined = interval.get("undefined")
    text = f"{_end(interval['low'], 'open below')} – {_end(interval['high'], 'open above')}"
    return f"{text}, no answer in {undefined:.0%} of resamples" if undefined else text


def _held_out(found: Mapping[str, Any]) -> list[list[str]]:
    splits = found.get("held_out", [])
    rows = [[s["name"], *_errors(s["errors"], s.get("fitted", {}).get("rmse"))] for s in splits]
    together = found.get("held_out_together")
    return [*rows, ["all of these", *_errors(together, None)]] if together else rows


def _errors(of: Mapping[str, Any], fitted: float | None) -> list[str]:
    largest = of["max_relative_error"]
    decimals = [_decimals(value) for value in (of["rmse"], fitted, of["mae"], of["r_squared"])]
    return [f"{of['runs']}", *decimals, "–" if largest is None else f"{largest:.2%}"]


def _decisions(found: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            _asked(one, one.get("symbol")),
            _end(one["value"], "no answer"),
            _end(one["standard_error"], "–"),
            range_of(one["interval"]),
            verdict(one["interval"]),
        ]
        for one in found.get("decisions", [])
    ]


def _predictions(found: Mapping[str, Any]) -> list[list[str]]:
    known = ("given", "low", "high", "level", "from_coefficients", "by")
    rows = []
    for one in found.get("predictions", []):
        name = next(key for key in one if key not in known)
        where = _asked({"name": name, "given": one["given"]})
        ends = [_end(one[key], "–") for key in ("low", name, "high")]
        rows.append([where, *ends, f"{one['level']:.0%}"])
    return rows


def _profiles(found: Mapping[str, Any]) -> list[list[str]]:
    words = {"low": "open below", "middle": "–", "high": "open above"}
    return [
        [_asked(one), "–", one["reason"], "–", "–"]
        if "reason" in one
        else [_asked(one), *(_end(one.get(key), text) for key, text in words.items()), f"{one['level']:.0%}"]
        for one in found.get("profiles", [])
    ]


def _influence(found: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for one in found.get("influence", []):
        if "reason" in one:
            rows.append([_asked(one), "–", one["reason"], "–"])
            continue
        rows.append([_asked(one), "none", _end(one["answer"], "–"), ""])
        each = zip(one["rows"], one["refitted"], one["foretold"], strict=True)
        rows += [["", f"row {row}", _end(refitted, "–"), _end(foretold, "–")] for row, refitted, foretold in each]
        rows.append(["", "all of these", _end(one["without_all"], "–"), ""])
    return rows


def _beyond(found: Mapping[str, Any]) -> list[list[str]]:
    return [[where_in_words(one["given"]), in_words(one["times"])] for one in found.get("beyond", [])]


def _asked(one: Mapping[str, Any], symbol: str | None = None) -> str:
    name = f"{one['name']} ({symbol})" if symbol else one["name"]
    where = where_in_words(one["given"])
    return f"{name} at {where}" if where else name


def _interval_of(found: Mapping[str, Any]) -> str:
    """Where the decisions' intervals are from; those of old files are of resamples."""
    intervals = [one["interval"] for one in found.get("decisions", []) if one["interval"]]
    by = next((one.get("by", "resamples") for one in intervals), "resamples")
    level = next((one["level"] for one in (*intervals, found.get("bootstrap") or {}) if "level" in one), None)
    return f"by {by}, {level:.0%}" if level else f"by {by}"


def _end(value: float | None, absent: str) -> str:
    return absent if value is None else format(value)


def _decimals(value: float | None) -> str:
    return "–" if value is None else f"{value:.5f}"
