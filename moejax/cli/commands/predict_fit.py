"""Implement ``moejax predict --law FIT``: print the prediction of a fitted law with its interval.

This is separate from ``predict``, since reading a fit imports the fitting code, which published laws do not need.
"""

from __future__ import annotations

import argparse
from typing import Any

from moejax.cli.commands.predict import predicted
from moejax.cli.parsers.predict import DESIGN_OPTIONS
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult, load_of_runs
from moejax.fit.uncertainty.prediction import range_in_words, range_of
from moejax.laws.design import Design
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.predict import predict
from moejax.wording import did_you_mean


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the fitted law and print its prediction."""
    return predicted(arguments, _ask)


def _ask(arguments: argparse.Namespace, design: Design) -> tuple[list[dict[str, Any]], dict[str, str]]:
    file = arguments.law
    fit = load_of_runs(file)
    if unread := [name for name in design.columns or () if name not in fit.law.inputs]:
        letters = dict(fit.law.formula.columns) if isinstance(fit.law, FormulaLaw) else {}
        if (ours := letters.get(unread[0], "")) in DESIGN_OPTIONS:
            raise UserError(f"{unread[0]} in the formula is {ours}; give --{ours.replace('_', '-')}.")
        raise UserError(f"The law of {file} reads no column {unread[0]}; {did_you_mean(unread[0], fit.law.inputs)}")
    said = predict(fit, design)
    ranged = range_of(fit, design)
    answer = {
        "law": type(fit.law).__name__,
        "constants": file,
        "source": f"{file}, {fit.metrics.runs} runs",
        "provenance": "your fit",
        "values": {name: _share_or_none(fit, name, value) for name, value in said.values.items()},
        "units": dict(said.units),
        "params_effective": said.params_effective,
        "interval": ranged.interval,
        "extrapolated": dict(said.extrapolated),
        "unchecked": list(said.unchecked),
        "dropped": list(fit.dropped),
        "remark": " ".join([range_in_words(fit, ranged, beyond=bool(said.extrapolated)), *fit.warnings, *fit.dropped]),
    }
    return [answer], {}


def _share_or_none(fit: FitResult, name: str, value: float) -> float | None:
    """Return a predicted value, or None for a share that is not between 0 and 1."""
    return value if not fit.is_share or name != fit.output or 0 < value < 1 else None
