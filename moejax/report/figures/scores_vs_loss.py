"""A task's error against the pretraining loss, by sparsity, with the form that was fitted."""

from __future__ import annotations

from moejax.report.figures.figure import Figure, column, ordered
from moejax.report.figures.panels import LOSS, Axis, Panel, Series, draw
from moejax.report.figures.style import INK, classes
from moejax.run_table import DataFrame

ERROR = Axis("error", "error")
MOST = 15
"""Tasks that are drawn."""


def scores_vs_loss(table: DataFrame, title: str, said: str = "") -> Figure:
    """Draw a panel per task of a table with ``task``, ``loss``, ``error`` and ``sparsity``.

    A column ``fitted_error`` is drawn as a line.
    """
    tasks = list(dict.fromkeys(table["task"]))
    sparsities = ordered(table["sparsity"])
    colours = dict(zip(sparsities, classes(len(sparsities)), strict=True))
    panels = []
    for task in tasks[:MOST]:
        own = table[table["task"] == task].sort_values("loss")
        series = []
        for sparsity, colour in colours.items():
            rows = own[own["sparsity"] == sparsity]
            if len(rows):
                label = f"S = {100 * sparsity:.3g} %"
                x, y = column(rows, "loss"), column(rows, "error")
                series.append(Series(label=label, x=x, y=y, mark="points", colour=colour))
        if "fitted_error" in own and (fitted := own[own["fitted_error"].notna()]).shape[0] > 1:
            x, y = column(fitted, "loss"), column(fitted, "fitted_error")
            series.append(Series(label="fitted, by the loss alone", x=x, y=y, colour=INK, width=1.1))
        panels.append(Panel(x=LOSS, y=ERROR, series=series, title=str(task)))
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    drawing, rows = draw(panels, columns=columns, height=2.4 if len(panels) > 1 else 3.2)
    left = f" {len(tasks) - MOST} more tasks are in the table." if len(tasks) > MOST else ""
    meaning = "The error is what a score lacks to 100 %, if it is a share of the documents."
    return Figure(title, f"Against the validation loss. {meaning}{said}{left}", drawing, rows)
