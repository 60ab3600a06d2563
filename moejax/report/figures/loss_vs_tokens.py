"""Validation loss against the token budget, a line per architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from moejax.quantities import format
from moejax.report.figures.figure import Figure
from moejax.report.figures.panels import columns_of
from moejax.report.figures.style import INK, MUTED, PAPER, SERIES, grid, labels_at, quantity_axis
from moejax.report.findings import Findings, experts, is_mixture

MODELS = 200
"""Models that are lines; a larger study is seen over its compute."""
LABELLED = 24
"""Models whose names fit beside the axes; in a larger study the CSV has them."""
TICKS = 6
"""Budgets that are ticks themselves; more make a plain log axis."""


def draw(findings: Findings) -> Figure | None:
    """Draw loss against tokens. Colours are widths or ranges of widths; dense models are dashed with open squares.

    None if the table does not give widths, tokens and which models are mixtures, or has too many models.
    """
    runs, mixture = findings.runs, is_mixture(findings.runs)
    if mixture is None or not {"model_dim", "tokens"} <= set(runs) or runs["model"].nunique() > MODELS:
        return None
    runs = runs.assign(_mixture=mixture).sort_values("tokens")
    widths = sorted(runs["model_dim"].unique())
    ranges = np.array_split(widths, min(len(widths), len(SERIES)))
    colours = {width: colour for own, colour in zip(ranges, SERIES, strict=False) for width in own}
    drawing, (axes,) = grid(1, 1, height_inches=4.0)
    ends = []
    for name, own in runs.groupby("model", sort=False):
        dense, colour = not own["_mixture"].iloc[0], colours[own["model_dim"].iloc[0]]
        style: dict[str, Any] = (
            {"linestyle": "--", "marker": "s", "markerfacecolor": PAPER} if dense else {"marker": "o"}
        )
        axes.plot(own["tokens"], own["loss"], color=colour, **style)
        ends.append((float(own["loss"].iloc[-1]), str(name), colour))
    axes.set_xscale("log")
    tokens = sorted(runs["tokens"].unique())
    quantity_axis(axes.xaxis, tokens)
    if len(tokens) <= TICKS:
        axes.xaxis.set_major_locator(FixedLocator(tokens))
        axes.set_xlim(tokens[0] / 1.07, tokens[-1] * 1.03)
    axes.set(xlabel="training tokens", ylabel="validation loss, nats/token")
    if len(ends) <= LABELLED:
        low, high = axes.get_ylim()
        axes.set_ylim(low, high)
        labels_at(axes, *map(list, zip(*ends, strict=True)), size=(high - low) / 22)
    keys = [Line2D([], [], color=colours[own[0]], label=f"width {_range(own)}") for own in ranges]
    mixture, dense = bool(runs["_mixture"].any()), not runs["_mixture"].all()
    kinds = [Line2D([], [], color=MUTED, marker="o", label="mixture of experts")] if mixture else []
    if dense:
        kinds.append(Line2D([], [], color=MUTED, marker="s", linestyle="--", markerfacecolor=PAPER, label="dense"))
    # Below: losses fall from one upper corner, and points at equal compute may fill the other.
    below = columns_of([str(key.get_label()) for key in (*keys, *kinds)])
    drawing.legend(handles=[*keys, *kinds], loc="outside lower center", ncols=below, labelcolor=INK)
    lines = runs["model"].duplicated().any()
    marks = ("solid", "dashed") if lines else ("a dot", "an open square")
    paid = (
        f" Where a mixture ({marks[0]}) lies below the dense model of its width ({marks[1]}), experts paid off at "
        f"equal active width."
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
