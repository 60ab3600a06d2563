"""Draw predictions of several laws against measurements: fitted runs and held-out runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from moejax.fit.runs import Runs
from moejax.fit.selection.comparison import Comparison
from moejax.fit.selection.metrics import predict
from moejax.fit.selection.model_selection import Compared
from moejax.laws.law import with_unit
from moejax.report.figures.figure import Figure
from moejax.report.figures.predicted_vs_actual import around
from moejax.report.figures.style import BLUE, MUTED, ORANGE, PAPER, grid

FITTED, HELD_OUT = "fitted", "held out"
LOOKS = {
    FITTED: {"color": BLUE, "marker": "o", "markersize": 4},
    HELD_OUT: {"color": ORANGE, "marker": "s", "markersize": 4.5},
}
"""Marks of runs by role."""


def draw(comparison: Comparison, runs: Runs, rows: Sequence[int]) -> Figure:
    """Draw a panel per law, the lowest held-out error first.

    Args:
      rows: numbers of the runs in their file.
    """
    columns = 3 if len(comparison.laws) > 4 else 2
    drawing, panels = grid(len(comparison.laws), columns, height_inches=2.9, sharex=True, sharey=True)
    limits = around(runs.loss[runs.weight > 0])
    data = []
    for law, axes in zip(comparison.laws, panels, strict=True):
        own = [*_fitted(law, runs, rows), *_held_out(comparison, law, runs, rows)]
        _panel(axes, own, limits)
        axes.set_title(f"{law.name}\nRMSE {law.fit.metrics.rmse_of(law.fit.output):.4f}, held out {law.rmse:.4f}")
        data += own
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)
    panels[0].xaxis.set_major_locator(MaxNLocator(5))
    panels[0].yaxis.set_major_locator(MaxNLocator(5))
    panels[0].set(xlim=limits, ylim=limits)
    panels[0].legend(loc="upper left")
    words = with_unit(runs.output)
    drawing.supxlabel(f"measured {words}", fontsize=8.5)
    drawing.supylabel(f"predicted {words}", fontsize=8.5)
    return Figure(
        "Predicted against measured",
        f"A point on the line is predicted exactly. RMSE in {comparison.unit}; held-out runs are predicted by a fit "
        "that did not see them. Triangles lie beyond the frame.",
        drawing,
        data,
    )


def _fitted(law: Compared, runs: Runs, rows: Sequence[int]) -> list[dict[str, Any]]:
    kept = runs.weight > 0
    return _points(law.name, FITTED, "all runs fitted", predict(law.fit.law, runs, law.fit.output), kept, runs, rows)


def _held_out(comparison: Comparison, law: Compared, runs: Runs, rows: Sequence[int]) -> list[dict[str, Any]]:
    points = []
    for split, held_out in zip(comparison.splits, law.held_out, strict=True):
        predicted = predict(held_out.fit.law, runs, held_out.fit.output)
        kept = split.held_out & (runs.weight > 0)
        points += _points(law.name, HELD_OUT, split.name, predicted, kept, runs, rows)
    return points


def _points(
    law: str, role: str, split: str, predicted: np.ndarray, kept: np.ndarray, runs: Runs, rows: Sequence[int]
) -> list[dict[str, Any]]:
    return [
        {
            "law": law,
            "role": role,
            "split": split,
            "row": rows[i],
            "output": runs.output,
            "measured": float(runs.loss[i]),
            "predicted": float(predicted[i]),
        }
        for i in np.flatnonzero(kept).tolist()
    ]


def _panel(axes: Axes, points: Sequence[dict[str, Any]], limits: tuple[float, float]) -> None:
    low, high = limits
    axes.axline((low, low), slope=1, color=MUTED, linewidth=0.9, zorder=1)
    for role, look in LOOKS.items():
        own = [point for point in points if point["role"] == role]
        measured = np.array([point["measured"] for point in own])
        predicted = np.array([point["predicted"] for point in own])
        edge = {"linestyle": "", "markeredgecolor": PAPER, "markeredgewidth": 0.5}
        inside = (predicted >= low) & (predicted <= high)
        axes.plot(measured[inside], predicted[inside], label=role, **look, **edge)
        for marker, beyond, place in (("^", predicted > high, high), ("v", predicted < low, low)):
            if beyond.any():
                axes.plot(measured[beyond], np.full(beyond.sum(), place), **{**look, **edge, "marker": marker})
    axes.set_aspect("equal", adjustable="box")
