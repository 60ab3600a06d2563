"""Loss that each law gives to every run against the loss that was measured."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import MaxNLocator

from moejax.report.figures.figure import Figure
from moejax.report.figures.style import BLUE, MUTED, ORANGE, PAPER, grid
from moejax.report.findings import Findings, is_mixture

MANY = 1500
"""Runs beyond which points are pixels, so that the page stays small."""
KINDS = ((1, "mixture of experts", BLUE, "o"), (0, "dense", ORANGE, "s"), (-1, "run, dense or mixture", MUTED, "o"))


def draw(findings: Findings) -> Figure | None:
    """Draw a panel per law. Return None if no law was fitted."""
    laws = findings.concluded.analysed.laws
    if not laws:
        return None
    many = max(len(law.rows) for law in laws) > MANY
    drawing, panels = grid(len(laws), 2, height_inches=3.5, sharex=True, sharey=True)
    rows = []
    for law, axes in zip(laws, panels, strict=True):
        runs = findings.runs.iloc[law.rows]
        measured = runs["loss"].to_numpy()
        mixture = is_mixture(runs)
        kinds = np.full(len(runs), -1) if mixture is None else mixture.astype(int)
        predicted, low, high = map(np.asarray, (law.predicted, law.predicted_low, law.predicted_high))
        axes.axline((measured[0], measured[0]), slope=1, color=MUTED, linewidth=0.9, zorder=1)
        for kind, label, colour, marker in KINDS:
            own = kinds == kind
            axes.vlines(measured[own], low[own], high[own], color=colour, linewidth=3, alpha=0.35, rasterized=many)
            axes.plot(
                measured[own],
                predicted[own],
                marker,
                color=colour,
                markeredgecolor=PAPER,
                markeredgewidth=0.6,
                label=label if own.any() else None,
                rasterized=many,
            )
        axes.set_title(f"{law.name}: R² {law.fit.metrics.r_squared:.3f}, MAE {law.fit.metrics.mae:.4f}")
        axes.set_xlabel("measured loss, nats/token")
        axes.set_aspect("equal", adjustable="box")
        for number, (_, run) in enumerate(runs.iterrows()):
            rows.append(
                {
                    "law": law.name,
                    "model": run["model"],
                    "tokens": run.get("tokens"),
                    "output": law.fit.output,
                    "measured": measured[number],
                    "predicted": predicted[number],
                    "predicted_low": low[number],
                    "predicted_high": high[number],
                }
            )
    every = np.array([row[name] for row in rows for name in ("measured", "predicted")])
    for axes in panels[-2:]:
        axes.tick_params(labelbottom=True)
    panels[0].xaxis.set_major_locator(MaxNLocator(6))
    panels[0].yaxis.set_major_locator(MaxNLocator(6))
    panels[0].set(xlim=around(every), ylim=around(every))
    panels[0].set_ylabel("predicted loss, nats/token")
    panels[0].legend(loc="upper left")
    return Figure(
        "Predicted against measured",
        "All runs shown were fitted; a point on the line is predicted exactly, bars hold 90 % of the bootstrap "
        "resamples. Points of one kind that all lie on one side are what the law cannot express.",
        drawing,
        rows,
    )


def around(values: np.ndarray) -> tuple[float, float]:
    """Return the ends of an axis that shows all values with a margin."""
    margin = 0.06 * np.ptp(values) or 0.1
    return float(values.min() - margin), float(values.max() + margin)
