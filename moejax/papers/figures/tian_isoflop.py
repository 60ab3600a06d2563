"""Tian et al. (2025), Figures 3, 10 to 13 and 16: the loss at fixed compute against one part of the architecture.

The paper's losses are not public: points come from a run table. Leverage curves are the law's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moejax.papers.figures.tian_budgets import NEAR
from moejax.papers.record import short
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs, column, ordered
from moejax.report.figures.leverage import GRANULARITY, LEVERAGE, RATIO, leverage
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, draw
from moejax.report.figures.style import ORANGE, RED, ramp
from moejax.result import size
from moejax.run_table import DataFrame

SHARED = Axis("shared_share", "shared share S")
HEADS = Axis("num_heads", "attention heads", "log")
BALANCE = "balance_weight"
COMPUTE = np.geomspace(1e18, 1e22, 41)


def all_three(inputs: FigureInputs) -> Figure:
    """Figure 3: loss against A, G and S, a curve per budget."""
    panels = [_isoflop(_of(inputs.table, axis), axis) for axis in (RATIO, GRANULARITY, SHARED)]
    drawing, rows = draw(panels, columns=3, height=2.7)
    return Figure(
        "Loss at fixed compute against A, G and S",
        "A curve per budget; stars are its least loss. Fewer active experts are better without an end, granularity and "
        "shared share have a best value." + inputs.whose,
        drawing,
        rows,
    )


def activation(inputs: FigureInputs) -> Figure:
    """Figure 10."""
    chosen = (3 / 9, 3 / 17, 3 / 33, 3 / 65, 3 / 129, 3 / 257)
    curves = [(f"A = {100 * a:.2g} %", leverage(inputs.law, a, 2.0, COMPUTE)) for a in chosen]
    return _with_leverage(inputs, RATIO, curves, "G = 2")


def granularity(inputs: FigureInputs) -> Figure:
    """Figure 11."""
    chosen = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
    curves = [(f"G = {g:g}", leverage(inputs.law, 0.031, g, COMPUTE)) for g in chosen]
    return _with_leverage(inputs, GRANULARITY, curves, "A = 3.1 %")


def weak_balance(inputs: FigureInputs) -> Figure:
    """Figure 12: granularity with the usual and with a weak balance loss."""
    panels = []
    for weight in ordered(inputs.table[BALANCE]):
        own = inputs.table[inputs.table[BALANCE] == weight]
        panels.append(replace(_isoflop(own, GRANULARITY), title=f"balance loss × {weight:g}"))
    drawing, rows = draw(panels, columns=len(panels), height=2.8, sharey=True)
    return Figure(
        "Granularity under weaker balance",
        "With a weaker balance loss the best granularity (stars) moves to fewer, larger experts." + inputs.whose,
        drawing,
        rows,
    )


def shared(inputs: FigureInputs) -> Figure:
    """Figure 13: loss against S, and against compute by S."""
    table = _of(inputs.table, SHARED)
    by_flops = []
    shares = ordered(table[SHARED.column])
    for share, colour in zip(shares, ramp(len(shares)), strict=True):
        own = table[table[SHARED.column] == share].sort_values("flops")
        by_flops.append(
            Series(
                label=f"S = {100 * share:.3g} %",
                x=column(own, "flops"),
                y=column(own, "loss"),
                mark="joined",
                colour=colour,
            )
        )
    panels = [_isoflop(table, SHARED), Panel(x=FLOPS, y=LOSS, series=by_flops)]
    drawing, rows = draw(panels, columns=2, height=2.8)
    return Figure(
        "Loss against the share of shared experts",
        "A small share is best (stars), and the best share falls with compute. The law has no S, so there is no "
        "leverage to draw." + inputs.whose,
        drawing,
        rows,
    )


def heads(inputs: FigureInputs) -> Figure:
    """Figure 16: loss against attention heads, a curve per size, near-optimal runs starred."""
    table, series = inputs.table, []
    sizes = ordered(table["params_total"])
    for total, colour in zip(sizes, ramp(len(sizes)), strict=True):
        own = table[table["params_total"] == total].sort_values(HEADS.column)
        x, y = column(own, HEADS.column), column(own, "loss")
        near = y <= y.min() * (1 + NEAR["heads"])
        series.append(Series(label=f"N = {size(total, 3)}", x=x, y=y, mark="joined", colour=colour))
        series.append(
            Series(label=f"within {NEAR['heads']:.1%} of the least", x=x[near], y=y[near], mark="stars", colour=RED)
        )
    drawing, rows = draw([Panel(x=HEADS, y=LOSS, series=series)], columns=1, height=3.2)
    return Figure(
        "Loss against attention heads",
        "Many numbers of heads are near-optimal (stars) at every size." + inputs.whose,
        drawing,
        rows,
    )


def _of(table: DataFrame, axis: Axis) -> DataFrame:
    """Rows of the sweep over one variable, if the table says which sweep a row belongs to."""
    return table[table["sweep"] == axis.column] if "sweep" in table else table


def _isoflop(table: DataFrame, axis: Axis) -> Panel:
    series = []
    budgets = ordered(table["flops"])
    for flops, colour in zip(budgets, ramp(len(budgets)), strict=True):
        own = table[table["flops"] == flops].groupby(axis.column, as_index=False)["loss"].mean()
        x, y = column(own, axis.column), column(own, "loss")
        lowest = int(np.argmin(y))
        series.append(Series(label=f"C = {short(flops)}", x=x, y=y, mark="joined", colour=colour))
        series.append(Series(label="least loss", x=[x[lowest]], y=[y[lowest]], mark="stars", colour=ORANGE))
    return Panel(x=axis, y=LOSS, series=series)


Curves = list[tuple[str, np.ndarray]]


def _with_leverage(inputs: FigureInputs, axis: Axis, curves: Curves, held: str) -> Figure:
    lines = [
        Series(label=label, x=COMPUTE, y=found, colour=colour)
        for (label, found), colour in zip(curves, ramp(len(curves)), strict=True)
    ]
    panels = [Panel(x=FLOPS, y=LEVERAGE, series=lines, title=held)]
    if inputs.has(axis.column, "flops", "loss"):
        panels.insert(0, _isoflop(_of(inputs.table, axis), axis))
    drawing, rows = draw(panels, columns=2, height=2.8)
    return Figure(
        f"Loss and leverage against {axis.words}",
        f"Left: loss at fixed compute, stars at the least. Right: leverage by {inputs.name}, which grows with compute."
        if len(panels) > 1
        else f"Leverage by {inputs.name}, which grows with compute." + inputs.whose,
        drawing,
        rows,
    )
