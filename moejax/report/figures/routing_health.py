"""Draw the balance of the mixtures of a run table: spread and worst of the loads, and dropped assignments."""

from __future__ import annotations

import numpy as np

from moejax.quantities import format
from moejax.report.figures.figure import Figure, FigureInputs, column, ordered
from moejax.report.figures.panels import TOKENS, Axis, Panel, Series, draw
from moejax.report.figures.style import classes

MEASURES = {
    "load_cv": Axis("load_cv", "load CV, 0 = balanced"),
    "max_violation": Axis("max_violation", "worst load over balanced, −1"),
    "dropped_share": Axis("dropped_share", "assignments dropped, share"),
}


def health(inputs: FigureInputs) -> Figure | None:
    """Draw a panel per measure of the table, over tokens. Return None if the table has no measures of mixtures."""
    table = inputs.table
    known = [name for name in MEASURES if name in table and table[name].notna().any()]
    if not known or "tokens" not in table:
        return None
    table = table[table[known].notna().any(axis=1)]
    by = "num_experts" if "num_experts" in table else None
    values = ordered(table[by]) if by else [0.0]
    panels = []
    for name in known:
        series = []
        for value, colour in zip(values, classes(len(values)), strict=True):
            own = table[table[by] == value] if by else table
            label = f"{format(value)} experts" if by else "runs"
            marks = {"x": column(own, "tokens"), "y": column(own, name), "mark": "points", "colour": colour}
            series.append(Series(label=label, **marks))
        if name == "dropped_share" and not np.any(column(table, name) > 0):
            continue
        panels.append(Panel(x=TOKENS, y=MEASURES[name], series=series))
    drawing, rows = draw(panels, columns=3, height=2.6)
    return Figure(
        "Routing health",
        "Of every mixture on the validation set: the spread of its experts' loads, the worst load, and the share of "
        "assignments dropped where a capacity drops any. Routing that is healthy stays low and falls with tokens.",
        drawing,
        rows,
    )
