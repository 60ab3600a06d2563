"""Draw the progress of trainings: expert loads over layers and time, interruptions and resumes."""

from __future__ import annotations

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.lines import Line2D

from moejax.report.figures.figure import Figure, FigureInputs, ordered
from moejax.report.figures.style import BLUE, FAINT, GREEN, MUTED, ORANGE, RED, WIDTH_INCHES, grid
from moejax.result import size

LAYERS = 6
"""Layers that get a panel, spread over the model's depth."""
OUTCOMES = {
    "done": ("|", GREEN),
    "running": ("|", BLUE),
    "interrupted": ("X", ORANGE),
    "killed": ("X", RED),
    "failed": ("s", RED),
}
"""Mark and colour of how an attempt ended; one that was killed did not say how."""
UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
TRAININGS = 40
"""Rows that are shown: of more trainings, those of most attempts."""


def loads(inputs: FigureInputs) -> Figure:
    """Load of every expert over the tokens seen, a panel per layer."""
    table = inputs.table
    layers = ordered(table["layer"])
    shown = [
        layers[i] for i in np.unique(np.linspace(0, len(layers) - 1, min(LAYERS, len(layers))).round().astype(int))
    ]
    norm = TwoSlopeNorm(1.0, 0.0, max(2.0, float(table["load"].quantile(0.995))))
    drawing, panels = grid(len(shown), 3, height_inches=2.0, sharex=True, sharey=True)
    for number, (layer, axes) in enumerate(zip(shown, panels, strict=True)):
        cells = table[table["layer"] == layer].pivot_table(index="expert", columns="tokens", values="load").sort_index()
        axes.pcolormesh(
            _edges(cells.columns.to_numpy(float)),
            np.arange(len(cells) + 1) + 0.5,
            cells.to_numpy(float),
            cmap="PuOr_r",
            norm=norm,
            rasterized=True,
        )
        axes.set_title(f"layer {layer:g}")
        axes.grid(False)
        axes.xaxis.set_major_formatter(lambda value, _: size(value, 3) if value else "0")
        axes.tick_params(labelbottom=number >= len(shown) - min(3, len(shown)))
    drawing.supxlabel("training tokens", fontsize=8.5)
    drawing.supylabel("expert", fontsize=8.5)
    bar = drawing.colorbar(
        ScalarMappable(norm, "PuOr_r"), ax=panels, pad=0.015, fraction=0.25 / WIDTH_INCHES, aspect=25
    )
    bar.set_label("load, 1 = balanced")
    bar.outline.set_visible(False)  # type: ignore[union-attr]
    return Figure(
        "Expert loads over time",
        "Share of assignments of every expert over the balanced one, as training goes on: purple experts are starved, "
        "brown ones crowded. A stripe that stays is an expert that routing has given up." + inputs.whose,
        drawing,
        table[["layer", "expert", "tokens", "load"]].to_dict("records"),
    )


def _edges(centres: np.ndarray) -> np.ndarray:
    """Return the edges of cells around ascending positive centres; a single cell is as wide as its centre is large."""
    if len(centres) == 1:
        return centres * np.array([0.5, 1.5])
    middles = (centres[1:] + centres[:-1]) / 2
    return np.array([2 * centres[0] - middles[0], *middles, 2 * centres[-1] - middles[-1]])


def restarts(inputs: FigureInputs) -> Figure:
    """Draw the attempts of every training over wall time, with their outcomes and the repeated work."""
    table = inputs.table
    counts = table["model"].value_counts(sort=False)
    most = set(counts.sort_values(ascending=False, kind="stable").index[:TRAININGS])
    names = [name for name in dict.fromkeys(table["model"]) if name in most]
    origin = float(table["start_seconds"].min())
    longest = float(table["end_seconds"].max()) - origin
    unit, words = next((unit, words) for unit, words in UNITS if longest / unit < 200 or words == "hours")
    drawing, (axes,) = grid(1, 1, height_inches=1.1 + 0.32 * len(names))
    for row, name in enumerate(names):
        axes.axhline(row, color=FAINT, linewidth=0.8, zorder=0)
        for attempt in table[table["model"] == name].sort_values("start_seconds").to_dict("records"):
            begin, end = ((attempt[key] - origin) / unit for key in ("start_seconds", "end_seconds"))
            marker, colour = OUTCOMES.get(str(attempt["outcome"]), ("X", MUTED))
            axes.barh(row, end - begin, left=begin, height=0.5, color=BLUE, alpha=0.35)
            axes.plot(end, row, marker, color=colour, markersize=12 if marker == "|" else 7, markeredgewidth=2)
            lost = attempt.get("lost_seconds", 0.0)
            if lost == lost and lost:
                axes.annotate(
                    f"−{lost:.3g} s",
                    (end, row),
                    (0, 9),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    color=colour,
                )
    axes.set_yticks(range(len(names)), [str(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.7)
    axes.set_xlabel(f"wall time, {words}")
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    keys = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=marker,
            color=colour,
            label=outcome,
            markeredgewidth=2,
        )
        for outcome, (marker, colour) in OUTCOMES.items()
        if (table["outcome"] == outcome).any()
    ]
    drawing.legend(handles=keys, loc="outside lower center", ncols=len(keys) or 1)
    fewer = f" The {TRAININGS} of most attempts are shown of {len(counts)}." if len(counts) > TRAININGS else ""
    return Figure(
        "Kills and resumes",
        "Every attempt of every training over wall time. A cross or a square is an end that was not the training's "
        "own; the number beside it is the time that went to taking steps again." + fewer + inputs.whose,
        drawing,
        table.to_dict("records"),
    )
