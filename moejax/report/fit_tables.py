"""What ``moejax fit`` wrote beside a fit, as tables: held-out errors, decisions, predictions, profiles, influence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moejax.fit.estimands import where_in_words
from moejax.fit.extrapolation import in_words
from moejax.quantities import format
from moejax.result import NOT_DETERMINED, Column, Table, percent

DECIMALS = ".5f"


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The tables of what a ``fit.json`` holds, errors on held-out runs first."""
    ends = (Column("low", format), Column("fitted", format), Column("high", format), Column("level", percent(0)))
    made = (
        Table(
            "Errors on runs that were not fitted, nats/token",
            (
                Column("held out"),
                Column("runs"),
                *(Column(name, DECIMALS) for name in ("RMSE", "RMSE fitted", "MAE", "R²")),
                Column("largest", percent(2)),
            ),
            _held_out(found),
            key="held-out",
        ),
        Table(
            "Decisions",
            (
                Column(""),
                Column("value", format),
                Column("standard error", format),
                Column(_interval_of(found)),
                Column(""),
            ),
            _decisions(found),
            key="decisions",
        ),
        Table(
            "Predicted runs",
            (Column(""), Column("low", format), Column("predicted", format), *ends[2:]),
            _predictions(found),
            key="predictions",
        ),
        Table("Profiles", (Column(""), *ends), _profiles(found), key="profiles"),
        Table(
            "Runs that decide most",
            (Column(""), Column("left out"), Column("refitted", format), Column("predicted", format)),
            _influence(found),
            key="decisive",
        ),
        Table(
            "Outside the fitted runs",
            (Column("asked at"), Column("times the largest, or the smallest")),
            _beyond(found),
            key="beyond",
        ),
    )
    return [one for one in made if one.rows]


def verdict(interval: Mapping[str, Any] | None) -> str:
    """Whether a resampled interval determines anything."""
    return NOT_DETERMINED if interval and interval.get("uninformative") else ""


def range_of(interval: Mapping[str, Any] | None) -> str:
    """A resampled interval in words; a dash if there is none."""
    if not interval:
        return "–"
    undefined = interval.get("undefined")
    text = f"{_end(interval['low'], 'open below')} – {_end(interval['high'], 'open above')}"
    return f"{text}, no answer in {undefined:.0%} of resamples" if undefined else text


def _held_out(found: Mapping[str, Any]) -> list[list[Any]]:
    splits = found.get("held_out", [])
    rows = [[s["name"], *_errors(s["errors"], s.get("fitted", {}).get("rmse"))] for s in splits]
    together = found.get("held_out_together")
    return [*rows, ["all of these", *_errors(together, None)]] if together else rows


def _errors(of: Mapping[str, Any], fitted: float | None) -> list[Any]:
    return [of["runs"], of["rmse"], fitted, of["mae"], of["r_squared"], of["max_relative_error"]]


def _decisions(found: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            _asked(one, one.get("symbol")),
            "no answer" if one["value"] is None else one["value"],
            one["standard_error"],
            range_of(one["interval"]),
            verdict(one["interval"]),
        ]
        for one in found.get("decisions", [])
    ]


def _predictions(found: Mapping[str, Any]) -> list[list[Any]]:
    known = ("given", "low", "high", "level", "from_coefficients", "by")
    rows = []
    for one in found.get("predictions", []):
        name = next(key for key in one if key not in known)
        where = _asked({"name": name, "given": one["given"]})
        rows.append([where, *(one[key] for key in ("low", name, "high", "level"))])
    return rows


def _profiles(found: Mapping[str, Any]) -> list[list[Any]]:
    words = {"low": "open below", "middle": None, "high": "open above"}
    return [
        [_asked(one), None, one["reason"], None, None]
        if "reason" in one
        else [_asked(one), *(_or(one.get(key), text) for key, text in words.items()), one["level"]]
        for one in found.get("profiles", [])
    ]


def _influence(found: Mapping[str, Any]) -> list[list[Any]]:
    rows = []
    for one in found.get("influence", []):
        if "reason" in one:
            rows.append([_asked(one), None, one["reason"], None])
            continue
        rows.append([_asked(one), "none", one["value"], ""])
        each = zip(one["rows"], one["refitted"], one["predicted"], strict=True)
        rows += [["", f"row {row}", refitted, predicted] for row, refitted, predicted in each]
        rows.append(["", "all of these", one["without_all"], ""])
    return rows


def _beyond(found: Mapping[str, Any]) -> list[list[Any]]:
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


def _or(value: float | None, otherwise: str | None) -> float | str | None:
    return otherwise if value is None else value
