"""Any fitted law through its runs: predicted against measured, and what was measured and predicted over each input."""

from __future__ import annotations

import numpy as np

from moejax.laws.design import FIELDS
from moejax.laws.law import with_unit
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs, column
from moejax.report.figures.panels import ACTIVE, FLOPS, TOKENS, TOTAL, Axis, Panel, Series, draw
from moejax.report.figures.style import BLUE, ORANGE

KNOWN = {axis.column: axis for axis in (ACTIVE, TOTAL, TOKENS, FLOPS)}
WIDE = 5.0
"""How many times larger than its least the largest value is from which an axis is logarithmic."""


def through_runs(inputs: FigureInputs) -> Figure:
    """Predicted against measured, then a panel for every input of the law that varies."""
    table = inputs.table
    measured, predicted = column(table, "measured"), column(table, "predicted")
    output = str(table["output"].iloc[0])
    words = with_unit(output)
    varying = [name for name in FIELDS if name in table and np.ptp(column(table, name)) > 0]
    equality = Series(label="runs", x=measured, y=predicted, mark="points", colour=BLUE, in_legend=False)
    error = float(np.sqrt(np.mean((predicted - measured) ** 2)))
    panels = [
        Panel(
            x=Axis("measured", f"measured {words}"),
            y=Axis("predicted", f"predicted {words}"),
            series=[equality],
            title="Predicted and measured",
            diagonal=True,
            corner=f"RMSE {error:.4g}",
        )
    ]
    for name in varying:
        x = column(table, name)
        order = np.argsort(x, kind="stable")
        series = [
            Series(label="measured", x=x[order], y=measured[order], mark="points", colour=BLUE),
            Series(label="predicted by the law", x=x[order], y=predicted[order], mark="open", colour=ORANGE),
        ]
        panels.append(Panel(x=_axis(name, x), y=Axis(output, words), series=series, title=f"Over {_words(name)}"))
    drawing, rows = draw(panels, columns=2, height=2.8)
    return Figure(
        f"{table['law'].iloc[0]} through its runs",
        f"{len(table)} runs. On the line a run is predicted exactly; a trend of the distance over an input says that "
        f"the law's form misses it.{inputs.whose}",
        drawing,
        rows,
    )


def _axis(name: str, values: np.ndarray) -> Axis:
    if name in KNOWN:
        return KNOWN[name]
    wide = values.min() > 0 and values.max() / values.min() > WIDE
    return Axis(name, _words(name), "log" if wide else "linear")


def _words(name: str) -> str:
    return KNOWN[name].words if name in KNOWN else name.replace("_", " ")
