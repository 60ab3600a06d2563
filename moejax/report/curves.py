"""Predict held-out curves, other schedules and the best schedule with a loss-curve law, and report them as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from moejax import table_file
from moejax.curves.loss_curves import (
    HeldOutCurve,
    knows_drops,
    predict_curve,
    reach_beyond,
)
from moejax.curves.read_curves import LARGEST_RATE, LONGEST, Curves, constant_only
from moejax.design.schedule import BestSchedule, best_schedule, check_horizon, final_loss
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult, read_plain
from moejax.fit.uncertainty.uncertainty import STANDARD
from moejax.float64 import float64
from moejax.folder import one_set, write_text
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws import ALIASES_OF_CURVES, CURVE_LAWS, called
from moejax.laws.predict import beyond_in_words
from moejax.quantities import parse, parse_whole_number
from moejax.report import render
from moejax.report.figures.figure import write_figure
from moejax.report.figures.loss_curves import fitted_curves
from moejax.result import BLANK, LOW_HIGH, Column, Result, Table, Written, percent
from moejax.stored import write_json
from moejax.train.schedule import DECAYS, WarmupStableDecay
from moejax.wording import counted, did_you_mean, listed


@dataclass(frozen=True)
class SavedFit:
    """A saved fit, with the names of its curves."""

    fit: FitResult
    curves: tuple[str, ...]
    hashes: tuple[str, ...]
    """Hashes of the curves (``LossCurve.data_hash``)."""


def load_saved(law: str) -> SavedFit | None:
    """Return the saved fit in a file or folder; None if the text is the name of a law."""
    path = Path(law)
    if law.lower() in (*CURVE_LAWS, *ALIASES_OF_CURVES):
        return None
    path = path / "fit.json" if path.is_dir() else path
    if not path.is_file():
        return None
    fit = FitResult.load(path)
    if type(fit.law) not in CURVE_LAWS.values():
        raise UserError(
            f"{path} is a fit of {called(type(fit.law))}, which is not a law of loss curves; give a fit from `moejax "
            "curves`."
        )
    plain = read_plain(path)
    return SavedFit(fit, tuple(plain.get("curves", ())), tuple(plain.get("curve_hashes", ())))


SCHEDULE = ("steps", "decay_share", "decay_shape", "final_share", "warmup", "peak")


def schedule_of(text: str, given: Mapping[str, str], curves: Curves) -> np.ndarray:
    """Return the learning rates of a schedule; warm-up and peak default to the first curve's values.

    Args:
      text: the schedule as the user wrote it, ``steps=…,decay_share=…``, for messages.
      given: the settings of the schedule, keyed by name.
    """
    first = curves.curves[0]
    if unknown := [name for name in given if name not in SCHEDULE]:
        raise UserError(f"--predict {text!r}: a schedule has no {unknown[0]!r}; {did_you_mean(unknown[0], SCHEDULE)}")
    if "steps" not in given:
        raise UserError(f"--predict {text!r} has no length; add steps=NUMBER.")
    shape = given.get("decay_shape", "linear")
    if shape not in DECAYS:
        raise UserError(f"--predict {text!r}: unknown decay {shape!r}; {did_you_mean(shape, DECAYS)}")
    whole = {name: parse_whole_number(given[name]) for name in ("steps", "warmup") if name in given}
    numbers = {name: parse(value) for name, value in given.items() if name not in {*whole, "decay_shape"}}
    steps, share = whole["steps"], numbers.get("decay_share", 0.0)
    warmup, peak = whole.get("warmup", first.warmup_steps), numbers.get("peak", first.peak)
    if steps > LONGEST:
        raise UserError(f"--predict {text!r}: steps must be at most {LONGEST:,}.")
    if not 0 < peak <= LARGEST_RATE:
        raise UserError(
            f"--predict {text!r}: the peak learning rate is {peak:g}; give one above 0 and at most {LARGEST_RATE:g}."
        )
    if not (0 <= share <= 1 and 0 <= warmup < steps and 0 <= numbers.get("final_share", 0.0) <= 1):
        raise UserError(
            f"--predict {text!r}: decay_share and final_share must be between 0 and 1, and the "
            f"warm-up ({counted(warmup, 'step')}) must end before the last step."
        )
    decay = min(share * steps, steps - warmup)
    rates = WarmupStableDecay(
        peak=peak,
        warmup_steps=warmup,
        decay_start=steps - decay if decay else np.inf,
        decay_steps=decay or 1.0,
        final_share=numbers.get("final_share", 0.0),
        shape=shape,
    )
    with float64():
        return np.asarray(jax.vmap(rates)(np.arange(steps)), np.float64)


def last_loss(result: FitResult, rates: np.ndarray, level: float) -> dict[str, Any]:
    """Return the loss at the end of a schedule, its prediction interval and its extrapolation factor, keyed by
    column."""
    last = predict_curve(result, rates, np.array([len(rates)]), level).iloc[-1].to_dict()
    return {**last, **dict(zip(("beyond", "beyond_in"), reach_beyond(result, rates), strict=True))}


def check_best(steps: int, curves: Curves, fixed: Mapping[str, float]) -> None:
    """Raise ``UserError``, before fitting, if no best schedule exists."""
    first = curves.curves[0]
    if steps > LONGEST:
        raise UserError(f"--best is {steps:,} steps; give at most {LONGEST:,}.")
    check_horizon(steps, first.warmup_steps, first.peak)
    if not (curves.falls or "drop_scale" in fixed):
        raise UserError(
            f"--best needs curves that determine how much the loss falls when the learning rate falls. "
            f"{constant_only(curves)}"
        )


def best_for(result: FitResult, curves: Curves, steps: int) -> BestSchedule:
    """Return the schedule with the lowest loss.

    Raises:
      UserError: the curves do not determine the effect of a decaying learning rate.
    """
    if not knows_drops(result):
        remedy = (
            constant_only(curves)
            or "These curves do not determine this; add a curve whose learning rate falls at another step."
        )
        raise UserError(
            f"--best needs curves that determine how much the loss falls when the learning rate falls. {remedy}"
        )
    first = curves.curves[0]
    return best_schedule(result.law, steps, warmup=first.warmup_steps, peak=first.peak)


def summary(
    result: FitResult,
    fitted: Curves,
    held_out: list[HeldOutCurve],
    answers: dict[str, dict[str, Any]],
    best: BestSchedule | None,
    level: float,
    kept: SavedFit | None,
) -> Result:
    """Return a fit of curves and its predictions as a ``Result``."""
    base, data = result.summary(level), {}
    tables = list(base.tables)
    notes = [
        "Resampling draws segments of a curve, because residuals of neighboring points are correlated.",
        *base.notes,
    ]
    if held_out:
        title = "Curves that were not fitted, errors in nats/token"
        tables.append(Table.of(title, HELD_OUT, held_out, key="held-out"))
        data["held_out"] = [
            {
                "name": h.name,
                "points": h.points,
                "r_squared": h.r_squared,
                "mae": h.mae,
                "rmse": h.rmse,
                "mean_relative_error": h.relative,
                "max_relative_error": h.worst,
                "last_error": h.last_error,
                "inside": h.inside,
                "beyond": h.beyond,
                "beyond_in": h.beyond_in,
            }
            for h in held_out
        ]
    if answers:
        tables.append(_answers_table(answers, level))
        notes += _too_high(answers, max(float(curve.loss.max()) for curve in fitted.curves))
        data["predictions"] = {text: finite(a) for text, a in answers.items()}
    if best is not None:
        gains = {name: _gain(result, best, rates, level) for name, (rates, _) in best.others.items()}
        tables.append(_best_table(best, gains, level))
        data["best"] = {
            "steps": len(best.rates),
            "loss": best.loss,
            "decays_from": best.decays_from,
            "final_share": best.final_share,
            "gains": {name: dict(zip(("gain", "low", "high"), gain, strict=True)) for name, gain in gains.items()},
        }
    names = fitted.names if kept is None else kept.curves
    hashes = [curve.data_hash for curve in fitted.curves] if kept is None else list(kept.hashes)
    said = constant_only(fitted) if kept is None else ""
    how = f"fitted {'' if kept is None else 'before '}to {counted(len(names), 'curve')}"
    return Result(
        title=f"{type(result.law).__name__}, {how} ({result.metrics.runs} points)",
        warnings=[*([said] if said else []), *base.warnings],
        tables=tables,
        notes=notes,
        data={**base.data, "curves": list(names), "curve_hashes": hashes, **finite(data)},
    )


HELD_OUT = (
    Column("curve", value="name"),
    Column("points", value="points"),
    Column("R²", ".4f", value="r_squared"),
    Column("MAE", ".5f", value="mae"),
    Column("RMSE", ".5f", value="rmse"),
    Column("largest", percent(2), value="worst"),
    Column("at the end", "+.5f", value="last_error"),
    Column("in interval", percent(0), value="inside"),
    Column("beyond", ".3g", value="beyond"),
    Column("in", words=True, value="beyond_in"),
)


def _answers_table(answers: dict[str, dict[str, Any]], level: float) -> Table:
    columns = (
        Column("schedule", words=True, value="schedule"),
        Column("loss", ".4f", value="loss"),
        Column(f"{in_percent(level)} prediction interval", keys=LOW_HIGH, value=_range),
        Column("beyond", ".3g", value="beyond"),
        Column("in", words=True, value="beyond_in"),
        Column("why no interval", words=True, value="reason"),
    )
    rows = [{"schedule": text, **answer} for text, answer in answers.items()]
    return Table.of("Loss at the end of a schedule, nats/token", columns, rows)


def _range(last: dict[str, Any]) -> Written:
    low, high = last["low"], last["high"]
    return BLANK if last["reason"] or not np.isfinite(low) else Written((low, high), f"[{low:.4f}, {high:.4f}]")


def _too_high(answers: dict[str, dict[str, Any]], highest: float) -> list[str]:
    above = {text: a for text, a in answers.items() if a["loss"] > highest}
    if not above:
        return []
    far = [
        f"{text}: {beyond_in_words({a['beyond_in']: a['beyond']})[0]} the fitted ones"
        for text, a in above.items()
        if a["beyond_in"]
    ]
    why = f" ({'; '.join(far)})" if far else ""
    return [
        f"! At the end of {listed(above)} the law predicts more than the highest measured loss, {highest:.4g}; it "
        f"does not describe such a schedule{why}."
    ]


def _gain(result: FitResult, best: BestSchedule, other: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return the loss difference between another schedule and the best schedule, and the ends of its interval from the
    covariance of the coefficients.
    """
    with float64():
        difference = result.spread(lambda law: final_loss(law, other) - final_loss(law, best.rates))
    (low,), (high,) = difference.ends(level, False)
    return float(difference.middle[0]), float(low), float(high)


def _best_table(best: BestSchedule, gains: Mapping[str, tuple[float, float, float]], level: float) -> Table:
    columns = (
        Column("schedule"),
        Column("loss", ".4f"),
        Column("best schedule is lower by", ".4f"),
        Column(f"{in_percent(level)} interval, {STANDARD}", keys=LOW_HIGH),
    )
    rows: list[list[Any]] = [["best", best.loss, None, BLANK]]
    rows += [
        [
            name,
            best.others[name][1],
            gain,
            Written((low, high), f"[{low:.4f}, {high:.4f}]") if math.isfinite(low) else None,
        ]
        for name, (gain, low, high) in gains.items()
    ]
    steps = len(best.rates)
    note = (
        f"The best schedule decays from step {best.decays_from:,} ({best.decays_from / steps:.0%}) to "
        f"{best.final_share:.2g} of the peak. It is an extrapolation: no curve had this schedule. Intervals include "
        "the uncertainty of the coefficients, but no model error; train both schedules to compare them."
    )
    title = f"The best schedule for {steps:,} steps under the law, nats/token"
    return Table(title, columns, rows, notes=[note])


def write(
    folder: Path,
    summary: Result,
    result: FitResult,
    read: Curves,
    held_out: list[HeldOutCurve],
    best: BestSchedule | None,
    level: float,
) -> list[str]:
    """Write the fit, the predictions and figures to a folder, and return the names of the files."""
    known = {h.name: h.predicted for h in held_out}
    parts = []
    for curve in read.curves:
        own = known.get(curve.name)
        if own is None:
            after = curve.steps >= curve.warmup_steps
            own = predict_curve(result, curve.rates, curve.steps[after], level).assign(measured=curve.loss[after])
        parts.append(own.assign(run=curve.name, role="held out" if curve.name in known else "fitted"))
    table = pd.concat(parts, ignore_index=True)
    with one_set():
        write_json(folder / "fit.json", summary.data)
        write_text(folder / "summary.txt", render.text(summary) + "\n")
        write_text(folder / "predictions.csv", table_file.csv_text(table))
        written = ["fit.json", "summary.txt", "predictions.csv"]
        written += write_figure(folder, "curves", lambda: fitted_curves(table, best, level))
        if best is not None:
            rows = {"step": np.arange(1, len(best.rates) + 1), "lr": best.rates}
            write_text(folder / "schedule.csv", table_file.csv_text(pd.DataFrame(rows)))
            written.append("schedule.csv")
    return written
