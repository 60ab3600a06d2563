"""Tian et al. (2025), Figures 2, 7, 8 and 9: learning rate, batch, model scale and tokens for a budget."""

from __future__ import annotations

import numpy as np

from moejax.laws.predict import published
from moejax.papers.tian_tables import GROUPS
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs, column, evaluate, ordered
from moejax.report.figures.panels import FLOPS, Axis, Field, Panel, Series, draw
from moejax.report.figures.style import BLUE, INK, MUTED, ORANGE, RED

BATCH = Axis("batch_tokens", "batch, tokens", "quantity")
RATE = Axis("learning_rate", "peak learning rate", "log")
SCALE = Axis("flops_per_token", "model scale M, FLOPs/token", "log")
TOKENS = Axis("tokens", "training tokens", "quantity")
BUDGETS = np.geomspace(3e17, 1e21, 41)
SEQUENCE = 4096
NEAR = {"hyperparameters": 0.0025, "heads": 0.005}
"""How far above the least loss a run is still near-optimal, as a share of it: Appendix E.1, Appendix M."""


def all_four(inputs: FigureInputs) -> Figure:
    """Figure 2."""
    return _picture(inputs, [*_hyperparameters(inputs), *_allocation()], 2, "Hyperparameters and allocation")


def hyperparameters(inputs: FigureInputs) -> Figure:
    """Figure 7."""
    return _picture(inputs, _hyperparameters(inputs), 2, "Best batch and learning rate")


def allocation(inputs: FigureInputs) -> Figure:
    """Figure 9."""
    caption = (
        "Compute-optimal model scale and tokens (Table 5): at any budget the best mixture is smaller and sees more "
        "tokens than the best dense model."
    )
    drawing, rows = draw(_allocation(), columns=2, height=2.8)
    return Figure("Best model scale and tokens", caption, drawing, rows)


def near_optimal(inputs: FigureInputs) -> Figure:
    """Figure 8: the loss over learning rate and batch, a panel per activation ratio."""
    table = inputs.table
    fields = []
    groups = [
        (f"A = {100 * a:.3g} %", table[table["activation_ratio"] == a]) for a in ordered(table["activation_ratio"])
    ]
    for title, own in groups:
        rates, batches = ordered(own["learning_rate"]), ordered(own["batch_tokens"])
        cells = np.full((len(batches), len(rates)), np.nan)
        for rate, batch, loss in zip(own["learning_rate"], own["batch_tokens"], own["loss"], strict=True):
            cells[batches.index(float(batch)), rates.index(float(rate))] = loss
        above = 100 * (cells / np.nanmin(cells) - 1)
        near = np.argwhere(above <= 100 * NEAR["hyperparameters"])
        marks = [
            Series(
                label=f"near-optimal: within {NEAR['hyperparameters']:.2%} of the least loss",
                x=[rates[j] for _, j in near],
                y=[batches[i] for i, _ in near],
                mark="points",
                colour=RED,
            )
        ]
        if "flops" in own:
            at = {
                name: evaluate(inputs.law, name, flops=float(own["flops"].iloc[0]))
                for name in (RATE.column, BATCH.column)
            }
            marks.append(
                Series(label="the law", x=[at[RATE.column]], y=[at[BATCH.column]], mark="stars", colour=ORANGE)
            )
        fields.append(
            Field(
                x=RATE,
                y=BATCH,
                z=Axis("loss_above_least_percent", "loss above least, %"),
                xs=rates,
                ys=batches,
                zs=above,
                title=title,
                marks=marks,
                contours=(0.25, 1, 2, 4),
            )
        )
    drawing, rows = draw(fields, columns=3, height=2.5)
    return Figure(
        "Near-optimal hyperparameters by activation ratio",
        f"Loss over learning rate and batch, against {inputs.name} (star): the law should lie among the red points "
        "at every activation ratio." + inputs.whose,
        drawing,
        rows,
    )


def _hyperparameters(inputs: FigureInputs) -> list[Panel]:
    printed = {
        RATE.column: [float(row[5]) for row in GROUPS],
        BATCH.column: [SEQUENCE * float(row[6]) for row in GROUPS],
    }
    flops = [row[7] for row in GROUPS]
    tables = published("hyperparameters", "tian-2025-tables").law
    panels = []
    for axis in (BATCH, RATE):
        series = [
            Series(label=inputs.name, x=BUDGETS, y=evaluate(inputs.law, axis.column, flops=BUDGETS), colour=BLUE),
            Series(
                label="power law through Table 8",
                x=BUDGETS,
                y=evaluate(tables, axis.column, flops=BUDGETS),
                mark="dashed",
                colour=ORANGE,
            ),
            Series(label="settings of Table 8", x=flops, y=printed[axis.column], mark="open", colour=INK),
        ]
        if inputs.has("flops", axis.column):
            own = Series(
                label="runs",
                x=column(inputs.table, "flops"),
                y=column(inputs.table, axis.column),
                mark="points",
                colour=MUTED,
            )
            series.insert(0, own)
        panels.append(Panel(x=FLOPS, y=axis, series=series))
    return panels


def _allocation() -> list[Panel]:
    sets = (("mixtures, Table 5", "tian-2025-moe", BLUE, "line"), ("dense, Table 5", "tian-2025-dense", RED, "dotted"))
    return [
        Panel(
            x=FLOPS,
            y=axis,
            series=[
                Series(
                    label=label,
                    x=BUDGETS,
                    y=evaluate(published("allocation", name).law, axis.column, flops=BUDGETS),
                    mark=mark,
                    colour=colour,
                )
                for label, name, colour, mark in sets
            ],
        )
        for axis in (SCALE, TOKENS)
    ]


def _picture(inputs: FigureInputs, panels: list[Panel], columns: int, title: str) -> Figure:
    drawing, rows = draw(panels, columns=columns, height=2.6)
    return Figure(
        title,
        "The learning rates and batches that the paper trained with (Table 8) are a power law, but not the printed "
        "Eq. 5: it gives smaller batches and larger learning rates." + inputs.whose,
        drawing,
        rows,
    )
