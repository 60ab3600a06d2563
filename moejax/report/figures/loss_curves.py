"""Loss curves and what a law says of them, above their schedules; and the best schedule beside the usual ones."""

from __future__ import annotations

import numpy as np

from moejax.design.schedule import BestSchedule
from moejax.report.figures.figure import Figure
from moejax.report.figures.panels import Axis, Panel, Series
from moejax.report.figures.panels import draw as draw_panels
from moejax.report.figures.style import MUTED, SERIES
from moejax.run_table import DataFrame

LOSS = Axis("loss_nats_per_token", "loss, nats/token")
STEP = Axis("step", "step")
RATE = Axis("learning_rate", "learning rate")
MOST = 400
"""Points of a line."""
MOST_MEASURED = 30
"""Measured points of a curve that are drawn: more would cover the lines."""
STEEP = 0.7
"""Share of the losses that is in view: the first steps of a training would leave no room for the others."""


def draw(table: DataFrame, best: BestSchedule | None = None, level: float = 0.9) -> Figure:
    """Draw measured losses as points and predicted losses as lines, dashed for curves that were not fitted.

    Args:
      table: columns run, role, step, lr, loss (predicted), measured.
      best: a ``BestSchedule``, for a panel of its own.
    """
    losses, rates = [], []
    names = list(dict.fromkeys(table["run"]))
    for number, name in enumerate(names):
        own = table[table["run"] == name]
        own = own.iloc[:: max(1, len(own) // MOST)]
        colour = SERIES[number % len(SERIES)]
        held_out = (own["role"] == "held out").all()
        mark = "dashed" if held_out else "line"
        few = own.iloc[:: max(1, len(own) // MOST_MEASURED)]
        losses.append(Series(label="measured", x=few["step"], y=few["measured"], mark="points", colour=MUTED))
        label = f"{name} (not fitted)" if held_out else name
        losses.append(Series(label=label, x=own["step"], y=own["loss"], mark=mark, colour=colour))
        rates.append(Series(label=label, x=own["step"], y=own["lr"], mark=mark, colour=colour, in_legend=False))
    panels = [
        Panel(x=STEP, y=LOSS, series=losses, title="Loss", ylim=_view(table)),
        Panel(x=STEP, y=RATE, series=rates, title="Schedules"),
    ]
    if best is not None:
        steps = np.unique(np.linspace(1, len(best.rates), MOST).astype(int))
        every = {"best under the law": best.rates, **{name: other for name, (other, _) in best.others.items()}}
        series = [
            Series(label=name, x=steps, y=own[steps - 1], mark="line" if not i else "dashed", colour=SERIES[i])
            for i, (name, own) in enumerate(every.items())
        ]
        panels.append(Panel(x=STEP, y=RATE, series=series, title=f"Best for {len(best.rates):,} steps"))
    drawing, rows = draw_panels(panels, columns=len(panels), height=3.2)
    said = " Right: the schedule of least loss under the law, an extrapolation." if best is not None else ""
    return Figure(
        "Loss curves and their law",
        f"Points are some of the measured ones; lines are the law, dashed where a curve was not fitted.{said}",
        drawing,
        rows,
    )


def _view(table: DataFrame) -> tuple[float, float]:
    """Return the limits of the loss axis, without the steep beginning."""
    both = np.concatenate([table["measured"], table["loss"]])
    low, high = float(both.min()), float(np.quantile(both, STEEP))
    return low - 0.08 * (high - low), high
