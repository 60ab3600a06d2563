"""Draw runs: loss against compute, loss against tokens, and task errors against loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from moejax.quantities import format
from moejax.report.figures.figure import Figure, FigureInputs, column, ordered
from moejax.report.figures.groups import MEANING, groups_of, range_of, split_into_classes
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, figure
from moejax.report.figures.style import (
    INK,
    MUTED,
    PAPER,
    SERIES,
    classes,
    grid,
    labels_at,
    legend_columns,
    markers_of,
    quantity_axis,
)
from moejax.report.findings import Findings, budget_frontier, experts, is_mixture
from moejax.run_table import DataFrame

BY = ("expansion", "sparsity", "active_experts", "params_active")
"""Candidate columns for the color: the first that varies by more than ``CLEARLY``, or else the first that varies."""
CLEARLY = 1.25
POINTS = 2000
"""Maximum number of points; a larger table is sampled evenly, and every run of the frontier is kept."""


def loss_vs_compute(inputs: FigureInputs) -> Figure:
    """Draw loss against training FLOPs, with the frontier: the run with the lowest loss of each compute budget, if its
    loss is at most that of every smaller budget."""
    table = inputs.table[["loss", "flops", *[name for name in BY if name in inputs.table]]]
    table = table.dropna(subset=["loss", "flops"]).sort_values("flops")
    best = budget_frontier(table)
    shown = table if len(table) <= POINTS else table.iloc[np.unique(np.linspace(0, len(table) - 1, POINTS).astype(int))]
    series = _by_class(shown)
    line = len(best) > 1  # A line of one run would be invisible.
    series.append(
        Series(
            label="frontier",
            x=column(best, "flops"),
            y=column(best, "loss"),
            color=INK,
            width=1.1,
            in_legend=line,
        )
    )
    sampled = f" {len(shown):,} of {len(table):,} runs are drawn." if len(shown) < len(table) else ""
    return figure(
        "Loss against compute",
        "Every run; the line joins the runs with the lowest loss of their compute budget."
        + f" {MEANING}" * any(one.label.startswith("expansion") for one in series)
        + sampled
        + inputs.whose,
        [Panel(x=FLOPS, y=LOSS, series=series)],
        columns=1,
        height=3.4,
    )


def _by_class(table: DataFrame) -> list[Series]:
    """Return a series of points for each class of runs. The classes, up to five, divide the values of the first
    variable that varies."""
    varied = [name for name in BY if name in table and table[name].nunique() > 1]
    clearly = (name for name in varied if table[name].max() > CLEARLY * table[name].min())
    name = next(clearly, varied[0] if varied else None)
    if name is None:
        return [Series(label="runs", x=column(table, "flops"), y=column(table, "loss"), mark="points")]
    if name == "expansion":
        return by_expansion(table)
    classed = split_into_classes(np.asarray(ordered(table[name].dropna())))
    series = []
    for own, color in zip(classed, classes(len(classed)), strict=True):
        rows = table[(table[name] >= own[0][0]) & (table[name] <= own[-1][-1])]
        label = f"{name.replace('_', ' ')} {range_of(own)}"
        series.append(Series(label=label, x=column(rows, "flops"), y=column(rows, "loss"), mark="points", color=color))
    return series


def by_expansion(table: DataFrame) -> list[Series]:
    """Return points of loss over FLOPs for each group of runs with about the same expansion."""
    x, y = column(table, "flops"), column(table, "loss")
    return [
        Series(label=one.label, x=x[one.rows], y=y[one.rows], mark="points", color=one.color)
        for one in groups_of(column(table, "expansion"))
    ]


MODELS = 200
"""Maximum number of models with a line; for a larger study, the figure over compute is clearer."""
LABELED = 24
"""Maximum number of models with a printed name; the CSV names all models."""
TICKS = 6
"""Maximum number of budgets that serve as ticks; with more, the log axis has its usual ticks."""


def loss_vs_tokens(findings: Findings) -> Figure | None:
    """Draw loss against tokens. Colors and markers show widths or ranges of widths; dense models are dashed with open
    markers.

    Return None if the table lacks widths or tokens, does not distinguish MoE from dense models, or has too many models.
    """
    runs, mixture = findings.runs, is_mixture(findings.runs)
    if mixture is None or not {"model_dim", "tokens"} <= set(runs) or runs["model"].nunique() > MODELS:
        return None
    runs = runs.assign(_mixture=mixture).sort_values("tokens")
    widths = sorted(runs["model_dim"].unique())
    ranges = np.array_split(widths, min(len(widths), len(SERIES)))
    colors = {width: color for own, color in zip(ranges, SERIES, strict=False) for width in own}
    markers = markers_of(colors.values())
    drawing, (axes,) = grid(1, 1, height_inches=4.0)
    ends = []
    for name, own in runs.groupby("model", sort=False):
        dense, color = not own["_mixture"].iloc[0], colors[own["model_dim"].iloc[0]]
        style: dict[str, Any] = {"linestyle": "--", "markerfacecolor": PAPER} if dense else {}
        axes.plot(own["tokens"], own["loss"], color=color, marker=markers[color], **style)
        ends.append(((float(own["tokens"].iloc[-1]), float(own["loss"].iloc[-1])), str(name), color))
    axes.set_xscale("log")
    tokens = sorted(runs["tokens"].unique())
    quantity_axis(axes.xaxis, tokens)
    if len(tokens) <= TICKS:
        axes.xaxis.set_major_locator(FixedLocator(tokens))
        axes.set_xlim(tokens[0] / 1.07, tokens[-1] * 1.03)
    axes.set(xlabel="training tokens", ylabel="validation loss, nats/token")
    if len(ends) <= LABELED:
        axes.set_ylim(axes.get_ylim())
        labels_at(axes, ends)
    keys = [
        Line2D([], [], color=color, marker=markers[color], label=f"width {_range(own)}")
        for own in ranges
        for color in [colors[own[0]]]
    ]
    mixture, dense = bool(runs["_mixture"].any()), not runs["_mixture"].all()
    kinds = [Line2D([], [], color=MUTED, marker="o", label="mixture of experts")] if mixture else []
    if dense:
        kinds.append(Line2D([], [], color=MUTED, marker="o", linestyle="--", markerfacecolor=PAPER, label="dense"))
    # The legend goes below the axes: curves fill the upper left corner, and points of equal compute may fill the right.
    below = legend_columns([str(key.get_label()) for key in (*keys, *kinds)])
    drawing.legend(handles=[*keys, *kinds], loc="outside lower center", ncols=below, labelcolor=INK)
    lines = runs["model"].duplicated().any()
    marks = ("solid", "dashed") if lines else ("a filled marker", "an open marker")
    paid = (
        f" Where an MoE model ({marks[0]}) lies below the dense model of its width ({marks[1]}), experts improve the "
        f"loss at equal active width."
    )
    return Figure(
        "Loss against tokens",
        "Validation loss of every run."
        + (" Lines should fall to the right." if lines else "")
        + (paid if mixture and dense else ""),
        drawing,
        [
            {
                "model": run["model"],
                "experts": experts(run),
                "model_dim": run["model_dim"],
                "tokens": run["tokens"],
                "validation_loss_nats_per_token": run["loss"],
            }
            for _, run in runs.iterrows()
        ],
    )


def _range(widths: np.ndarray) -> str:
    ends = [format(width) for width in (widths[0], widths[-1])]
    return " to ".join(dict.fromkeys(ends))


ERROR = Axis("error", "error")
TASKS = 15
"""Maximum number of panels."""


def scores_vs_loss(table: DataFrame, title: str, said: str = "") -> Figure:
    """Draw error against loss, a panel per task, from a table with ``task``, ``loss``, ``error`` and ``sparsity``.

    A column ``fitted_error`` is drawn as a line.
    """
    tasks = list(dict.fromkeys(table["task"]))
    sparsities = ordered(table["sparsity"])
    colors = dict(zip(sparsities, classes(len(sparsities)), strict=True))
    panels = []
    for task in tasks[:TASKS]:
        own = table[table["task"] == task].sort_values("loss")
        series = []
        for sparsity, color in colors.items():
            rows = own[own["sparsity"] == sparsity]
            if len(rows):
                label = f"S = {100 * sparsity:.3g} %"
                x, y = column(rows, "loss"), column(rows, "error")
                series.append(Series(label=label, x=x, y=y, mark="points", color=color))
        if "fitted_error" in own and (fitted := own[own["fitted_error"].notna()]).shape[0] > 1:
            x, y = column(fitted, "loss"), column(fitted, "fitted_error")
            series.append(Series(label="fitted, by the loss alone", x=x, y=y, color=INK, width=1.1))
        panels.append(Panel(x=LOSS, y=ERROR, series=series, title=str(task)))
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    left = f" {len(tasks) - TASKS} more tasks are in the table." if len(tasks) > TASKS else ""
    meaning = "For scores that are shares of documents, the error is 100 % minus the score."
    return figure(
        title,
        f"Against the validation loss. {meaning}{said}{left}",
        panels,
        columns=columns,
        height=2.4 if len(panels) > 1 else 3.2,
    )
