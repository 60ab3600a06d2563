"""Draw Zhao et al. (2025), Figures 5 to 7, 9 and 12: predicted against measured loss, by Eqs. 4 to 11 and rival laws.

The input is ``predicted_vs_actual.csv`` from ``moejax fit --recipe zhao`` or ``moejax compare``, or a run table, to
which the law is fitted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from moejax.errors import UserError
from moejax.laws.law import coefficients
from moejax.laws.mixtures.five_factor import ZHAO_2025
from moejax.papers.documents import ABNAR, ZHAO
from moejax.papers.zhao import recipe
from moejax.papers.zhao.margins import INPUTS
from moejax.papers.zhao.records import AVERAGE_ERRORS
from moejax.papers.zhao.runs import zhao_runs
from moejax.report.figures.figure import Figure, FigureInputs, evaluate, structured
from moejax.report.figures.predictions import by_law, fitted_and_held_out
from moejax.report.plots import PREDICTIONS, FromRuns
from moejax.report.synthetic import NOISE

LAWS = {"Eq. 4": "two_factor", "Eq. 7": "three_factor", "Eq. 9": "four_factor", "Eq. 11": "five_factor"}
"""Names of the nested laws in ``moejax compare``, keyed by equation."""
STEPS = {
    "6": ("Eq. 4", "N and D"),
    "7": ("Eq. 7", "N, D and N_a"),
    "9": ("Eq. 9", "N, D, N_a and G"),
    "12": ("Eq. 11", "N, D, N_a, G and S"),
}
"""Equation and factors of each figure."""
FIELDS = ("top_k", "num_shared_experts", "params_active", "params_total", "tokens")
"""Inputs of a five-factor law in a run table."""


def predictions() -> pd.DataFrame:
    """Return synthetic losses by Zhao's law plus noise at the settings of Table 6, with predictions by two laws."""
    table = zhao_runs(NOISE)
    known = {name: table[name].to_numpy(float) for name in FIELDS}
    sizes = {name: known[name] for name in ("params_active", "params_total", "tokens")}
    laws = {
        "five_factor": evaluate(ZHAO_2025, **known),
        "the same, blind to G and S": evaluate(ZHAO_2025, **structured(7.0, 0.3, **sizes)),
    }
    return _predicted(laws, table)


def steps() -> pd.DataFrame:
    """Return synthetic losses by Zhao's law plus noise at the settings of Table 6, with predictions by Eqs. 4, 7, 9 and
    11.

    Each equation is fitted by least squares to the rows that the paper fits; exponents, k and h are fixed at Table 2.
    """
    law, table = coefficients(ZHAO_2025), zhao_runs(NOISE)
    table = table.loc[(table["is_fitted"] == 1) | (table["is_validation"] == 1)]
    known = {name: table[name].to_numpy(float) for name in FIELDS}
    fitted, loss = table["is_fitted"].to_numpy() == 1, table["loss"].to_numpy(float)
    laws = {}
    for name, form in recipe.NESTED.items():
        every = [f.name for f in dataclasses.fields(form)]
        given = ("params_exponent", "tokens_exponent", "active_coupling", "share_coupling")
        held = {n: law[n] for n in every if n in given}
        free = [n for n in every if n not in held]
        # A law is linear in its free coefficients: each column is the law with one free coefficient 1 and the others 0.
        units = [form(**held, **{n: float(n == one) for n in free}) for one in free]
        columns = np.stack([evaluate(unit, **known) for unit in units], axis=1)
        scale = np.abs(columns).max(axis=0)
        weights = np.linalg.lstsq(columns[fitted] / scale, loss[fitted], rcond=None)[0]
        laws[name] = columns / scale @ weights
    return _predicted(laws, table)


def _predicted(laws: dict[str, np.ndarray], table: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(
        pd.DataFrame(
            {
                "law": name,
                "role": np.where(table["is_validation"] == 1, "held out", "fitted"),
                "tokens": table["tokens"],
                "output": "loss",
                "measured": table["loss"],
                "predicted": predicted,
            }
        )
        for name, predicted in laws.items()
    )


@ZHAO.experiment(
    "5",
    law="",
    columns=PREDICTIONS.columns,
    from_runs=FromRuns(reads=INPUTS, table=lambda runs, split, _: recipe.compared(runs, split)),
    example=predictions,
    shows="predicted and measured loss, a panel a law",
)
def compared(inputs: FigureInputs) -> Figure:
    """Draw Figure 5: the joint law and its rivals; the other nested laws of a table are left out."""
    named = inputs.table["law"]
    steps = set(LAWS) - {"Eq. 11"}
    others = inputs.table[~named.isin(steps)] if (named == "Eq. 11").any() else inputs.table
    return by_law(replace(inputs, table=others))


def _step(inputs: FigureInputs, number: str, equation: str, factors: str) -> Figure:
    named: Any = inputs.table["law"].isin((equation, LAWS[equation]))
    if not named.any():
        known = ", ".join(map(str, dict.fromkeys(inputs.table["law"])))
        raise UserError(
            f"{number} shows predictions by {equation} or {LAWS[equation]}, but the table has predictions by {known}. "
            "Give predicted_vs_actual.csv from `moejax fit --recipe zhao --out`, or a run table."
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


for _number, (_equation, _factors) in STEPS.items():
    ZHAO.experiment(
        _number,
        law="",
        columns=PREDICTIONS.columns,
        from_runs=FromRuns(
            reads=recipe.NESTED[_equation].inputs,
            table=lambda runs, split, _, equation=_equation: recipe.step(equation, runs, split),
        ),
        example=steps,
        shows=f"predicted and measured loss under {_equation}",
    )(partial(_step, number=f"Figure {_number}", equation=_equation, factors=_factors))

ABNAR.experiment(
    "6",
    law="",
    columns=PREDICTIONS.columns,
    example=predictions,
    shows="predicted and measured loss, fitted and held out",
)(fitted_and_held_out)
