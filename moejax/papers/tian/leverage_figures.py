"""Draw Tian et al. (2025), Figures 1, 4, 5 and 17: efficiency leverage, the factor of compute that an MoE model
saves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from moejax.errors import UserError
from moejax.laws.dense.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.law import coefficients
from moejax.laws.mixtures.leverage import leverage_between
from moejax.papers.documents import TIAN
from moejax.papers.tian.recipe import curve_table, leverage_table
from moejax.papers.tian.runs import LAW, from_runs
from moejax.papers.tian.tables import OF_ROUTED, PRINTED_RATIO, ROUTED_RATIOS, in_percent
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.law_curves import GRANULARITY_OF_LEVERAGE as GRANULARITY
from moejax.report.figures.law_curves import LEVERAGE, RATIO, field, leverage
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, curves, figure
from moejax.report.figures.style import BLUE, MUTED, ORANGE
from moejax.report.synthetic import rng
from moejax.run_table import DataFrame

BUDGETS = (3e18, 3e19, 3e20, 1e21, 1e22)
LARGEST_FITTED = 3e20
ALGORITHM_1 = from_runs(leverage_table)
READS = ("role", "measured_efficiency_leverage", "predicted_efficiency_leverage")


def leverages() -> pd.DataFrame:
    """Return synthetic leverages of 120 MoE models by the law, with noise; leverages of at least 6 are for
    validation."""
    random = rng()
    ratio, granularity = np.exp(random.uniform(np.log(0.008), 0, 120)), random.uniform(2, 16, 120)
    exact = leverage(LAW, ratio, granularity, np.exp(random.uniform(np.log(3e18), np.log(3e20), 120)))
    measured = exact * np.exp(random.normal(0.0, 0.05, 120))
    role = np.where(measured < 6, "fitted", "validation")
    return pd.DataFrame(
        {"role": role, "measured_efficiency_leverage": measured, "predicted_efficiency_leverage": exact}
    )


def loss_curves() -> pd.DataFrame:
    """Return synthetic loss-compute curves: a dense curve (a law's frontier) and MoE curves with constant leverage."""
    dense = coefficients(frontier(HOFFMANN_2022))
    rows = []
    for activation, gain in (("dense", 1.0), (3 / 17, 2.0), (3 / 65, 4.0)):
        curve = {name: float(value) for name, value in dense.items()}
        curve["scale"] *= gain ** curve["exponent"]
        ends = {"least_flops": 2e18, "most_flops": 2e20}
        rows.append({"activation": activation, "granularity": 2.0, "budgets": 5, **curve, **ends})
    return pd.DataFrame(rows)


@TIAN.experiment(
    "1a",
    columns=("activation", "granularity", "scale", "exponent", "irreducible", "least_flops", "most_flops"),
    from_runs=from_runs(curve_table),
    example=loss_curves,
    shows="definition of efficiency leverage",
)
def definition(inputs: FigureInputs) -> Figure:
    """Draw Figure 1a: the dense model's compute divided by the MoE model's at equal loss.

    Raises:
      UserError: the table has no dense curve, or the dense curve reaches no MoE model's loss.
    """
    table = inputs.table.assign(activation=inputs.table["activation"].astype(str))
    fitted = {
        (row["activation"], row["granularity"]): (
            row,
            LossCompute(scale=row["scale"], exponent=row["exponent"], irreducible=row["irreducible"]),
        )
        for row in table.to_dict("records")
    }
    dense = next((curve for row, curve in fitted.values() if row["activation"] == "dense"), None)
    gains = {
        key: float(leverage_between(curve, dense, row["most_flops"]))
        for key, (row, curve) in fitted.items()
        if dense is not None and row["activation"] != "dense"
    }
    gains = {key: gain for key, gain in gains.items() if 0 < gain < np.inf}
    if dense is None or not gains:
        raise UserError(
            "The table has no dense curve, or the dense curve does not reach the loss of any MoE model; add dense runs."
        )
    best = max(gains, key=lambda key: gains[key])
    gain, (row, curve) = gains[best], fitted[best]
    least, most = float(row["least_flops"]), float(row["most_flops"])
    own, needed = np.geomspace(least, most, 41), most * gain
    longer = np.geomspace(least, max(needed, most) * 1.5, 61)
    target = float(evaluate(curve, flops=most))
    name = f"MoE, A =  {100 * float(row['activation']):.3g} %, G = {float(row['granularity']):g}"
    series = [
        Series(label="dense", x=longer, y=evaluate(dense, flops=longer), color=MUTED),
        Series(label=name, x=own, y=evaluate(curve, flops=own), color=BLUE),
        Series(label="equal loss", x=[most, needed], y=[target, target], mark="dashed", color=ORANGE),
        Series(label="C of the MoE and the dense model", x=[most, needed], y=[target] * 2, mark="stars"),
    ]
    panel = Panel(x=FLOPS, y=LOSS, series=series, note=f"EL = {gain:.2f}\nat C = {short(most)}")
    return figure(
        "What efficiency leverage is",
        "The dense model needs the compute at the right star to reach the loss of the MoE model at the left star; the "
        "ratio of these FLOPs is EL (Algorithm 1). The figure shows the MoE model with the highest leverage."
        + inputs.whose,
        [panel],
        columns=1,
        height=3.2,
    )


@TIAN.experiment("1b", law="leverage", shows="landscape of efficiency leverage")
def landscape(inputs: FigureInputs) -> Figure:
    """Draw Figure 1b: EL by A and G at 1e22 FLOPs."""
    mini = Series(label="MoE-mini: A = 3.4 %, G = 10.7", x=[32 / 3], y=[13 / 385], mark="stars", color=ORANGE)
    return figure(
        "Efficiency leverage at 1e22 FLOPs",
        f"Compute of a dense model divided by the compute of an MoE model with equal loss, by {inputs.name}. The "
        "budget is 33 times the largest fitted budget.",
        [field(inputs.law, 1e22, [mini])],
        columns=1,
        height=3.8,
    )


@TIAN.experiment(
    "4",
    law="leverage",
    columns=("activation_ratio", "granularity", "flops", "measured_efficiency_leverage"),
    from_runs=ALGORITHM_1,
    shows="leverage by activation ratio, granularity and compute",
)
def one_by_one(inputs: FigureInputs) -> Figure:
    """Draw Figure 4: EL against A at G = 2, against G at A = 3.1 % (or the table's ratio), and against C."""
    held = PRINTED_RATIO
    if inputs.table is not None:
        held = float(_measured(inputs.table, GRANULARITY)[RATIO.column].iloc[0])
    ratios, granularities, flops = (np.geomspace(*ends, 61) for ends in ((0.0078, 1), (1.5, 24), (1e18, 1e23)))

    def at_budget(budget: float) -> str:
        return f"C = {short(budget)}"

    by_ratio = curves(BUDGETS, at_budget, ratios, lambda c: leverage(inputs.law, ratios, 2.0, c))
    by_granularity = curves(BUDGETS, at_budget, granularities, lambda c: leverage(inputs.law, held, granularities, c))
    by_ratio, by_granularity = (
        [replace(one, mark="line" if c <= LARGEST_FITTED else "dashed") for one, c in zip(each, BUDGETS, strict=True)]
        for each in (by_ratio, by_granularity)
    )
    by_flops = curves(ROUTED_RATIOS, in_percent, flops, lambda a: leverage(inputs.law, a, 2.0, flops), "dotted")
    every = ((RATIO, by_ratio, "G = 2"), (GRANULARITY, by_granularity, in_percent(held)), (FLOPS, by_flops, "G = 2"))
    panels = []
    for axis, series, title in every:
        if inputs.table is not None:
            own = _measured(inputs.table, axis)
            x, y = column(own, axis.column), column(own, MEASURED.column)
            series.append(Series(label="measured, at every C", x=x, y=y, mark="open", color=MUTED))
        panels.append(Panel(x=axis, y=LEVERAGE, series=series, title=title))
    return figure(
        "Efficiency leverage against A, G and C",
        f"By {inputs.name}: a power of the activation ratio, a parabola in log granularity, a power of compute. "
        f"Dashed budgets are above 3e20 FLOPs, the largest budget that the paper fitted. {OF_ROUTED}" + inputs.whose,
        panels,
        columns=3,
        height=2.7,
    )


MEASURED = Axis("measured_efficiency_leverage", "measured EL")
PREDICTED = Axis("predicted_efficiency_leverage", "predicted EL")
RESIDUAL = Axis("residual", "predicted minus measured EL")
ROLES = (("fitted", BLUE, "points"), ("validation", ORANGE, "stars"))


def _measured(table: DataFrame, axis: Axis) -> DataFrame:
    """Return the leverages at G = 2, or for the axis G, the leverages of the activation ratio with the most
    granularities."""
    if axis is not GRANULARITY:
        return table[(table[GRANULARITY.column] / 2 - 1).abs() < 0.1]
    ratios = table.groupby(RATIO.column)[GRANULARITY.column].nunique()
    return table[table[RATIO.column] == ratios.idxmax()]


@TIAN.experiment("5", columns=READS, from_runs=ALGORITHM_1, example=leverages, shows="predicted and measured leverage")
def validation(inputs: FigureInputs) -> Figure:
    """Draw Figure 5: predicted against measured EL; large EL are held out."""
    panel = Panel(x=MEASURED, y=PREDICTED, series=_by_role(inputs, residual=False), diagonal=True)
    return figure(
        "Leverage, predicted against measured",
        "Points on the line are predicted exactly; the paper fits EL below 6 and validates on larger EL."
        + inputs.whose,
        [panel],
        columns=1,
        height=3.8,
    )


@TIAN.experiment("17", columns=READS, from_runs=ALGORITHM_1, example=leverages, shows="residuals of the leverage law")
def residuals(inputs: FigureInputs) -> Figure:
    """Draw Figure 17: residuals of the joint law against the prediction and as a histogram."""
    table = inputs.table
    gap = column(table, PREDICTED.column) - column(table, MEASURED.column)
    counts, edges = np.histogram(gap, bins=max(8, min(24, len(gap) // 6)))
    x, y = np.repeat(edges, 2)[1:-1], np.repeat(counts, 2)
    stairs = Series(label="residuals", x=x, y=y, color=BLUE, in_legend=False)
    normal = np.linspace(edges[0], edges[-1], 61)
    spread = max(float(gap.std()), 1e-12)
    bell = len(gap) * (edges[1] - edges[0]) * np.exp(-((normal - gap.mean()) ** 2) / (2 * spread**2))
    bell = Series(
        label="normal with equal mean and deviation",
        x=normal,
        y=bell / (spread * np.sqrt(2 * np.pi)),
        mark="dashed",
        color=MUTED,
    )
    note = f"mean {gap.mean():+.3f}\nst. dev. {gap.std():.3f}"
    panels = [
        Panel(x=PREDICTED, y=RESIDUAL, series=_by_role(inputs, residual=True), level=0.0),
        Panel(x=RESIDUAL, y=Axis("count", "points"), series=[stairs, bell], note=note),
    ]
    return figure(
        "Residuals of the leverage law",
        "Residuals should be centered on 0 at every prediction, and normally distributed." + inputs.whose,
        panels,
        columns=2,
        height=2.9,
    )


def _by_role(inputs: FigureInputs, *, residual: bool) -> list[Series]:
    table, series = inputs.table, []
    for role, color, mark in ROLES:
        own = table[table["role"] == role]
        if len(own):
            predicted, measured = column(own, PREDICTED.column), column(own, MEASURED.column)
            x, y = (predicted, predicted - measured) if residual else (measured, predicted)
            series.append(Series(label=role, x=x, y=y, mark=mark, color=color))
    return series
