"""Annealed losses against tokens: measured, predicted without what was measured, and of budgets not trained."""

from __future__ import annotations

import numpy as np

from moejax.fit.curves.annealed import LEVEL, AnnealedLosses
from moejax.report.figures.figure import Figure
from moejax.report.figures.panels import LOSS, TOKENS, Panel, Series
from moejax.report.figures.panels import draw as draw_panels
from moejax.report.figures.style import BLUE, MUTED, ORANGE, SERIES
from moejax.run_table import DataFrame
from moejax.study.annealed import StudyAnnealed

MOST = 12
"""Models that get a panel."""
NOT_TRAINED = SERIES[2]


def draw(annealed: StudyAnnealed) -> Figure:
    """Draw a panel per model."""
    shown = dict(list(annealed.models.items())[:MOST])
    panels = [_panel(name, one, annealed.table[annealed.table["model"] == name]) for name, one in shown.items()]
    drawing, rows = draw_panels(panels, columns=min(3, len(panels)), height=2.6)
    left = f" The first {MOST} of {len(annealed.models)} models are shown." if len(annealed.models) > MOST else ""
    return Figure(
        "Annealed losses, predicted and measured",
        f"The trunk at its constant rate (grey) and the ends of its branches (filled). Open: each end, predicted from "
        f"the trunk and the other branches alone. Squares: budgets to which no branch was trained. Lines are "
        f"{LEVEL:.0%} ranges.{left}",
        drawing,
        rows,
    )


def _panel(name: str, one: AnnealedLosses, table: DataFrame) -> Panel:
    batch = float(table["batch_tokens"].iloc[0])
    first = min(left.end for left in one.left_out) / 2
    kept = one.trunk.steps >= first
    ends = np.array([left.end for left in one.left_out]) * batch
    measured, guesses = np.array([left.measured for left in one.left_out]), [left.predicted for left in one.left_out]
    guessed = table[table["is_predicted"] == 1]
    series = [
        Series(label="trunk", x=one.trunk.steps[kept] * batch, y=one.trunk.loss[kept], colour=MUTED, width=1.0),
        *_ranges(ends, [p.low for p in guesses], [p.high for p in guesses], ORANGE),
        Series(label="measured", x=ends, y=measured, mark="points", colour=BLUE),
        Series(label="predicted without it", x=ends, y=[p.loss for p in guesses], mark="open", colour=ORANGE),
    ]
    if len(guessed):
        tokens = guessed["tokens"].to_numpy(np.float64)
        series += _ranges(tokens, guessed["loss_low"], guessed["loss_high"], NOT_TRAINED)
        series.append(
            Series(label="predicted, not trained", x=tokens, y=guessed["loss"], mark="squares", colour=NOT_TRAINED)
        )
    return Panel(x=TOKENS, y=LOSS, series=series, title=name)


def _ranges(tokens: np.ndarray, low: object, high: object, colour: str) -> list[Series]:
    return [
        Series(label=f"{LEVEL:.0%} range", x=[x, x], y=[a, b], colour=colour, width=1.2, in_legend=False)
        for x, a, b in zip(tokens, np.asarray(low), np.asarray(high), strict=True)
    ]
