"""Draw Zhao et al. (2025), Figures 5 to 7, 9 and 12: predicted against measured loss, by Eqs. 4 to 11 and rivals.

The input is ``predicted_vs_actual.csv`` of ``moejax fit --recipe zhao`` or ``moejax compare``, or a run table, to which
the law is then fitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from moejax.errors import UserError
from moejax.papers.zhao.records import AVERAGE_ERRORS
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.predictions import by_law, fitted_and_held_out

LAWS = {"Eq. 4": "two_factor", "Eq. 7": "three_factor", "Eq. 9": "four_factor", "Eq. 11": "five_factor"}
"""Equations of the steps, with the names of their laws in ``moejax compare``."""


def two_factor(inputs: FigureInputs) -> Figure:
    """Draw Figure 6."""
    return _step(inputs, "Figure 6", "Eq. 4", "N and D")


def three_factor(inputs: FigureInputs) -> Figure:
    """Draw Figure 7."""
    return _step(inputs, "Figure 7", "Eq. 7", "N, D and N_a")


def four_factor(inputs: FigureInputs) -> Figure:
    """Draw Figure 9."""
    return _step(inputs, "Figure 9", "Eq. 9", "N, D, N_a and G")


def five_factor(inputs: FigureInputs) -> Figure:
    """Draw Figure 12."""
    return _step(inputs, "Figure 12", "Eq. 11", "N, D, N_a, G and S")


def compared(inputs: FigureInputs) -> Figure:
    """Draw Figure 5: the joint law and its rivals; for a table with all steps, only the joint law of them."""
    named = inputs.table["law"]
    steps = set(LAWS) - {"Eq. 11"}
    others = inputs.table[~named.isin(steps)] if (named == "Eq. 11").any() else inputs.table
    return by_law(replace(inputs, table=others))


def _step(inputs: FigureInputs, number: str, equation: str, factors: str) -> Figure:
    named: Any = inputs.table["law"].isin((equation, LAWS[equation]))
    if not named.any():
        known = ", ".join(map(str, dict.fromkeys(inputs.table["law"])))
        raise UserError(
            f"{number} draws the predictions of {equation} or {LAWS[equation]}, and the table has those of {known}; "
            "give the predicted_vs_actual.csv of `moejax fit --recipe zhao --out`, or a run table."
        )
    own = inputs.table[named]
    draw = fitted_and_held_out if len(set(own["role"])) > 1 else by_law
    figure = draw(replace(inputs, table=own.assign(law=equation)))
    return replace(
        figure,
        title=f"{equation}: predicted against measured, by {factors}",
        caption=f"{figure.caption} The paper's average error on its validation runs is "
        f"{AVERAGE_ERRORS[(number, equation)]} nats.",
    )
