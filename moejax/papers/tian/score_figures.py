"""Draw Tian et al. (2025), Figures 6 and 15: loss and benchmark scores during training, from a table of scores.

A row is a model's score in a task after some tokens. Columns are ``model``, ``tokens``, ``task`` and ``score``,
``category`` for tasks outside Table 7, and optionally ``loss``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from moejax.papers.documents import TIAN
from moejax.papers.tian.tables import TABLE_7, TASKS
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import LOSS, TOKENS, Axis, Panel, Series, figure
from moejax.report.figures.style import BLUE, ORANGE, ramp
from moejax.report.synthetic import rng
from moejax.run_table import DataFrame

SCORE = Axis("mean_score_percent", "mean score, %")
CATEGORIES: Mapping[str, str] = {task: category for category, tasks in TASKS.items() for task in tasks}
"""Categories of Table 7, keyed by task."""
READS = ("model", "tokens", "task", "score")


def scores() -> pd.DataFrame:
    """Return synthetic losses and scores of two models during training; final scores are near Tian's Table 7."""
    random, rows = rng(), []
    tokens = np.linspace(1e11, 1e12, 10)
    for which, model in enumerate(("Dense-6.1B", "MoE-mini")):
        loss = 1.75 + (0.35 + 0.05 * which) * np.exp(-tokens / (3e11 - 3e10 * which))
        for category, tasks in TASKS.items():
            for task, last in zip(tasks, TABLE_7[category][2 + which], strict=True):
                grown = last * (1 - 0.6 * np.exp(-tokens / 2.5e11)) + random.normal(0.0, 0.6, len(tokens))
                rows.append(
                    pd.DataFrame({"model": model, "tokens": tokens, "task": task, "score": grown, "loss": loss})
                )
    return pd.concat(rows, ignore_index=True)


@TIAN.experiment("6", columns=READS, example=scores, shows="loss and benchmarks over training")
def over_training(inputs: FigureInputs) -> Figure:
    """Draw Figure 6: the loss, if the table has it, and the mean score."""
    panels = [_panel(inputs.table, SCORE, "score", "mean of all tasks")]
    if "loss" in inputs.table:
        panels.insert(0, _panel(inputs.table, LOSS, "loss", ""))
    return figure(
        "Loss and benchmarks over training",
        "The mean score averages all tasks, not categories, like the paper's overall average." + inputs.whose,
        panels,
        columns=2,
        height=2.8,
    )


@TIAN.experiment("15", columns=READS, example=scores, shows="benchmarks over training, by category")
def by_category(inputs: FigureInputs) -> Figure:
    """Draw Figure 15: the mean score of all tasks and of each category."""
    table = inputs.table
    if "category" not in table:
        table = table.assign(category=[CATEGORIES.get(str(task), "other") for task in table["task"]])
    panels = [_panel(table, SCORE, "score", "overall")]
    known = [name for name in TASKS if name in set(table["category"])]
    for name in [*known, *sorted({*table["category"]} - {*known})]:
        panels.append(_panel(table[table["category"] == name], SCORE, "score", str(name)))
    return figure(
        "Benchmarks over training, by category",
        "Means over the tasks of a category." + inputs.whose,
        panels,
        columns=3,
        height=2.3,
    )


def _panel(table: DataFrame, axis: Axis, name: str, title: str) -> Panel:
    models = list(dict.fromkeys(table["model"]))
    colors = (ORANGE, BLUE) if len(models) <= 2 else ramp(len(models))
    series = []
    for model, color in zip(models, colors, strict=False):
        own = table[table["model"] == model].groupby("tokens", as_index=False)[name].mean()
        x, y = column(own, "tokens"), column(own, name)
        series.append(Series(label=str(model), x=x, y=y, mark="joined", color=color))
    return Panel(x=TOKENS, y=axis, series=series, title=title)
