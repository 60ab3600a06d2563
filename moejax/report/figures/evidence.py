"""Diagnose a fit by profile likelihoods, influence of runs and agreement of initial guesses, as tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from moejax.errors import UserError
from moejax.fit.answers import asked_of
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import ends
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.derivatives import Functional
from moejax.fit.uncertainty.derivatives import influence as influence_of
from moejax.fit.uncertainty.estimands import CoefficientOf, coefficient_estimands
from moejax.fit.uncertainty.profile import curve
from moejax.laws.design import value_of
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import Axis, Panel, Series, figure
from moejax.report.figures.style import BLUE, MUTED, ORANGE, grid
from moejax.report.mathml import greek
from moejax.wording import did_you_mean, listed


def coefficients(result: FitResult) -> dict[str, Functional]:
    """Return a functional for each fitted coefficient that the data determine, keyed by coefficient."""
    return {name: CoefficientOf(name) for name in result.coefficients if not result.state(name)}


def labels(read: ReadRuns) -> list[str]:
    """Return the names of runs: their models, or else their row numbers."""
    names = read.frame["model"] if "model" in read.frame else [f"row {row}" for row in read.rows]
    return [str(name) for name in names]


def profile_table(result: FitResult, runs: Runs, estimands: Mapping[str, Functional] | None = None) -> pd.DataFrame:
    """Return the profile likelihoods of several estimands, by default of every coefficient, with symbols of
    coefficients. Estimands without a profile are left out.
    """
    symbols = {one.name: one.symbol for one in coefficient_estimands(type(result.law))}
    parts = []
    for name, functional in (estimands or coefficients(result)).items():
        try:
            profile = curve(result, runs, functional)
        except ValueError:
            continue
        parts.append(
            pd.DataFrame(
                {
                    "estimand": name,
                    "symbol": symbols.get(name, ""),
                    "value": profile.values,
                    "rise": profile.rises,
                    "limit": profile.limit,
                }
            )
        )
    return pd.concat(parts) if parts else pd.DataFrame({"estimand": [], "value": [], "rise": [], "limit": []})


def influence_table(
    result: FitResult,
    read: ReadRuns,
    name: str | None = None,
    *,
    decide: Sequence[Mapping[str, float]] = (),
    predict: Sequence[Mapping[str, float]] = (),
) -> pd.DataFrame:
    """Return the first-order change of an estimand, by default the last coefficient, when each run is removed.

    Args:
      name: name or symbol of a coefficient, a decision or a predicted output.
      decide: given quantities of decisions, such as ``{"flops": 1e22}``.
      predict: quantities of runs to predict.

    Raises:
      UserError: there is no such estimand, it is given at several quantities, or the runs do not determine it.
    """
    determined = coefficients(result)
    if name is None and not determined:
        raise UserError("The runs determine no coefficient of this fit, so influences are undefined; fit more runs.")
    name = name or next(reversed(determined))
    asked = asked_of(
        type(result.law), result.output, tuple(result.fixed), decide=decide, predict=predict, influence=[name]
    )
    one, *others = asked.influences
    if others:
        raise UserError(f"{name} is asked at {listed(each.where for each in asked.influences)}; give one of them.")
    if one.name in result.coefficients and one.name not in determined:
        raise UserError(
            f"The runs determine no coefficient {name!r} of this fit; {did_you_mean(name, list(determined))}"
        )
    (change,) = influence_of(result, read.runs, one.functional)
    return pd.DataFrame(
        {
            "run": labels(read),
            "estimand": one.title if one.given else one.name,
            "estimate": change.value,
            "if_removed": np.asarray(change.if_removed, np.float64),
        }
    )


def starts_table(result: FitResult, runs: Runs) -> pd.DataFrame:
    """Return the objective that each initial guess reached in the fit's search."""
    return pd.DataFrame({"objective": ends(result, runs)})


def fit_table(result: FitResult, runs: Runs) -> pd.DataFrame:
    """Return a table of fitted runs: measurement, prediction, the law's inputs, and FLOPs and expansion if known."""
    kept = runs.where(runs.weight > 0)
    known_ratio = kept.design.params_total is not None and kept.design.params_active is not None
    names = dict.fromkeys((*type(result.law).inputs, "flops", *(["expansion"] * known_ratio)))
    inputs = {name: value for name in names if (value := value_of(kept.design, name)) is not None}
    return pd.DataFrame(
        {
            "law": type(result.law).__name__,
            "output": result.output,
            "measured": kept.loss,
            "predicted": predict(result.law, kept, result.output),
            **inputs,
        }
    )


PROFILES = 12
"""Maximum number of panels."""
INFLUENTIAL = 12
"""Maximum number of bars."""


def profiles(inputs: FigureInputs) -> Figure:
    """Draw the increase of the objective as each estimand moves from its best value and the other coefficients are
    refitted.
    """
    panels = []
    for estimand in list(dict.fromkeys(inputs.table["estimand"]))[:PROFILES]:
        own = inputs.table[inputs.table["estimand"] == estimand].sort_values("value")
        value, rise = column(own, "value"), column(own, "rise")
        limit = float(own["limit"].iloc[0])
        wide = value.min() > 0 and value.max() / value.min() > 5
        lowest = value[np.argmin(rise)]
        words, symbol = str(estimand).replace("_", " "), str(own["symbol"].iloc[0]) if "symbol" in own else ""
        panels.append(
            Panel(
                x=Axis(
                    "value",
                    f"{greek(symbol)}, {words}" if symbol else words,
                    "quantity" if wide and value.max() > 1e3 else "linear",
                ),
                y=Axis("rise_chi_squared", "rise, units of χ²"),
                series=[
                    Series(label="profile, other coefficients refitted", x=value, y=rise, color=BLUE, mark="joined"),
                    Series(label="best fit", x=[lowest], y=[0.0], color=ORANGE, mark="stars"),
                ],
                level=limit,
                level_label="90 %",
                ylim=(-0.06 * limit, 2.2 * limit),
            )
        )
    return figure(
        "Profile likelihoods",
        "Each estimand is held at a series of values, and all coefficients are refitted at each. The 90 % interval "
        "ends where the curve crosses the labeled line; if a curve never crosses it, the runs do not determine the "
        "estimand.",
        panels,
        columns=3,
        height=2.2,
    )


def influence(inputs: FigureInputs) -> Figure:
    """Draw the change of an estimate when each of its most influential runs is removed."""
    table = inputs.table.copy()
    table["share"] = column(table, "if_removed") / np.maximum(np.abs(column(table, "estimate")), 1e-300)
    table = table.reindex(table["share"].abs().sort_values(ascending=False).index).head(INFLUENTIAL)[::-1]
    shares, names = 100 * column(table, "share"), [str(name) for name in table["run"]]
    drawing, (axes,) = grid(1, 1, height_inches=0.9 + 0.24 * len(names))
    axes.barh(names, shares, color=np.where(shares > 0, BLUE, ORANGE), height=0.65)
    axes.axvline(0.0, color=MUTED, linewidth=0.9)
    axes.set_xlabel(f"change of {table['estimand'].iloc[0]} if the run had not been trained, %")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return Figure(
        "Influence of runs on the estimate",
        f"The {len(names)} runs whose removal changes the estimate most, to first order (by differentiating through "
        f"the optimum). An estimate that depends on a single run is only as reliable as that run.",
        drawing,
        table[["run", "estimand", "estimate", "if_removed"]][::-1].to_dict("records"),
    )


def starts(inputs: FigureInputs) -> Figure:
    """Draw the objective that each initial guess reached."""
    value = np.sort(column(inputs.table, "objective"))
    above = value / value[0] - 1
    near = above <= 1e-4
    rank = np.arange(1, len(value) + 1)
    panel = Panel(
        x=Axis("rank", "initial guess, best first"),
        y=Axis("objective_above_lowest_share", "objective / lowest − 1", "log"),
        series=[
            Series(label="reached the lowest objective", x=rank[near], y=np.maximum(above[near], 1e-10), mark="points"),
            Series(label="ended elsewhere", x=rank[~near], y=above[~near], mark="squares", color=ORANGE),
        ],
        level=1e-4,
        ylim=(3e-11, max(1.0, 3 * float(above.max()))),
    )
    return figure(
        "Agreement of initial guesses",
        f"{near.sum()} of {len(value)} optimized initial guesses reached the lowest objective, within 0.01 % (grey "
        f"line; exact ties are drawn at 1e-10). If only a few do, the global minimum may be lower.",
        [panel],
        columns=1,
        height=2.8,
    )
