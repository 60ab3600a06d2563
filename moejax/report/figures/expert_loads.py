"""Draw the load of every expert of every mixture layer on the validation set."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import TwoSlopeNorm

from moejax.report.figures.figure import Figure
from moejax.report.figures.style import MUTED, WIDTH_INCHES, grid
from moejax.report.findings import Findings, layer_loads

LAYERS = 48
"""Layers that are shown; a larger study shows the first in its table."""
NUMBER_INCHES, CHARACTER_INCHES, BAR_INCHES = 0.27, 0.06, 0.8
"""Widths of a load that is written into its cell, of a letter of a layer's name, and of the scale beside the cells."""


def draw(findings: Findings) -> Figure | None:
    """Draw every mixture at its largest token budget, one row per layer. Return None if no run has experts."""
    if "expert_loads" not in findings.runs or "tokens" not in findings.runs:
        return None
    largest = findings.runs.sort_values("tokens").drop_duplicates("model", keep="last").sort_index()
    layers = [
        (str(run["model"]), number, sorted(loads, reverse=True))
        for _, run in largest.iterrows()
        for number, loads in layer_loads(run).items()
    ]
    if not layers:
        return None
    shown = layers[:LAYERS]
    cells = np.full((len(shown), max(len(loads) for _, _, loads in shown)), np.nan)
    for number, (_, _, loads) in enumerate(shown):
        cells[number, : len(loads)] = loads
    drawing, (axes,) = grid(1, 1, height_inches=0.9 + 0.23 * len(shown))
    norm = TwoSlopeNorm(1.0, 0.0, max(2.0, float(np.nanmax(cells))))
    mesh = axes.pcolormesh(cells, cmap="PuOr_r", norm=norm, edgecolors="none")
    names = [f"{name}, layer {layer}" for name, layer, _ in shown]
    room = WIDTH_INCHES - BAR_INCHES - CHARACTER_INCHES * max(map(len, names))
    if room / cells.shape[1] >= NUMBER_INCHES:
        _write(axes, cells, norm)
    axes.set_yticks(np.arange(len(shown)) + 0.5, names, fontsize=7.5)
    ticks = np.arange(0, cells.shape[1], max(1, cells.shape[1] // 16))
    axes.set_xticks(ticks + 0.5, [str(tick + 1) for tick in ticks])
    axes.set_xlabel("expert, by load")
    axes.invert_yaxis()
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for number in range(1, len(shown)):
        if shown[number][0] != shown[number - 1][0]:
            axes.axhline(number, color=MUTED, linewidth=0.8)
    bar = drawing.colorbar(mesh, ax=axes, pad=0.015, fraction=0.25 / WIDTH_INCHES, aspect=25)
    bar.set_label("load, 1 = balanced")
    bar.outline.set_visible(False)  # type: ignore[union-attr]
    left_out = f" The first {LAYERS} of {len(layers)} layers are shown." if len(layers) > LAYERS else ""
    return Figure(
        "Expert loads",
        "Share of assignments that each routed expert gets on the validation set at the model's largest budget, over "
        "the balanced share; experts are sorted within a layer. Purple experts are starved, brown ones crowded."
        + left_out,
        drawing,
        [
            {"model": name, "layer": layer, "expert_by_load": rank + 1, "load_over_balanced": load}
            for name, layer, loads in shown
            for rank, load in enumerate(loads)
        ],
    )


def _write(axes, cells: np.ndarray, norm: TwoSlopeNorm) -> None:
    """Write the load into every cell, in a light colour on dark cells."""
    for (row, column), load in np.ndenumerate(cells):
        if np.isfinite(load):
            colour = "#f4f4f4" if abs(float(norm(load)) - 0.5) > 0.27 else "#222222"
            axes.text(column + 0.5, row + 0.52, f"{load:.2f}", ha="center", va="center", fontsize=7, color=colour)
