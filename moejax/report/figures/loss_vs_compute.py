"""Every run of a table over its training FLOPs: the picture of any table, of three runs or of ten thousand."""

from __future__ import annotations

import numpy as np

from moejax.quantities import format
from moejax.report.figures.figure import Figure, FigureInputs, column, ordered
from moejax.report.figures.panels import FLOPS, LOSS, Panel, Series, draw
from moejax.report.figures.style import INK, classes
from moejax.report.findings import frontier
from moejax.run_table import DataFrame

BY = ("sparsity", "expansion", "active_experts", "params_active")
"""Columns that may colour the points: the first that varies by more than ``CLEARLY``, else the first that varies."""
CLEARLY = 1.25
CLASSES = 5
EQUAL = 0.02
"""Relative difference within which values of the colouring column are one level."""
MOST = 2000
"""Points that are drawn; of a larger table an even sample, and every run of the frontier."""


def runs(inputs: FigureInputs) -> Figure:
    """Draw loss against training FLOPs, with the frontier: the lowest loss of all runs with at most as much compute."""
    table = inputs.table[["loss", "flops", *[name for name in BY if name in inputs.table]]]
    table = table.dropna(subset=["loss", "flops"]).sort_values("flops")
    best = frontier(table, "flops")
    shown = table if len(table) <= MOST else table.iloc[np.unique(np.linspace(0, len(table) - 1, MOST).astype(int))]
    series = _classes(shown)
    line = len(best) > 1  # A line of one run is not seen.
    series.append(
        Series(
            label="frontier",
            x=column(best, "flops"),
            y=column(best, "loss"),
            colour=INK,
            width=1.1,
            in_legend=line,
        )
    )
    drawing, rows = draw([Panel(x=FLOPS, y=LOSS, series=series)], columns=1, height=3.4)
    sampled = f" {len(shown):,} of {len(table):,} runs are drawn." if len(shown) < len(table) else ""
    return Figure(
        "Loss against compute",
        "Every run; the line joins the runs that none with as little compute beats." + sampled + inputs.whose,
        drawing,
        rows,
    )


def _classes(table: DataFrame) -> list[Series]:
    """Return the points in up to five classes of the first variable that varies."""
    varied = [name for name in BY if name in table and table[name].nunique() > 1]
    clearly = (name for name in varied if table[name].max() > CLEARLY * table[name].min())
    name = next(clearly, varied[0] if varied else None)
    if name is None:
        return [Series(label="runs", x=column(table, "flops"), y=column(table, "loss"), mark="points")]
    levels = _levels(np.asarray(ordered(table[name].dropna())))
    classed = [
        levels[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(levels)), min(CLASSES, len(levels)))
    ]
    series = []
    for own, colour in zip(classed, classes(len(classed)), strict=True):
        rows = table[(table[name] >= own[0][0]) & (table[name] <= own[-1][-1])]
        ends = dict.fromkeys(format(float(np.median(level)), 3) for level in (own[0], own[-1]))
        label = f"{name.replace('_', ' ')} {' to '.join(ends)}"
        series.append(
            Series(label=label, x=column(rows, "flops"), y=column(rows, "loss"), mark="points", colour=colour)
        )
    return series


def _levels(values: np.ndarray) -> list[np.ndarray]:
    """Split ascending values where neighbours differ by more than ``EQUAL``: nominal sixes may be 5.99 and 6.01."""
    return np.split(values, np.flatnonzero(np.diff(values) > EQUAL * np.abs(values[1:])) + 1)
