"""Draw diagnostics of training runs: expert loads and their balance, interruptions, and the cost of plans."""

from __future__ import annotations

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from moejax.quantities import format
from moejax.report.figures.figure import Figure, FigureInputs, column, ordered
from moejax.report.figures.panels import TOKENS, Axis, Panel, Series, figure
from moejax.report.figures.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SERIES,
    WIDTH_INCHES,
    classes,
    grid,
)
from moejax.report.findings import Findings, layer_loads
from moejax.result import size

LAYER_PANELS = 6
"""Maximum number of panels; layers are spread over the model's depth."""
OUTCOMES = {
    "done": ("|", GREEN),
    "running": (">", BLUE),
    "interrupted": ("D", ORANGE),
    "killed": ("X", RED),
    "failed": ("s", RED),
}
"""Mark and color of each outcome of an attempt; a killed attempt leaves no outcome."""
UNITS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
TRAININGS = 40
"""Maximum number of rows; runs with the most attempts are kept."""


def loads(inputs: FigureInputs) -> Figure:
    """Draw the load of every expert over training tokens, a panel per layer."""
    table = inputs.table
    layers = ordered(table["layer"])
    shown = [
        layers[i]
        for i in np.unique(np.linspace(0, len(layers) - 1, min(LAYER_PANELS, len(layers))).round().astype(int))
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
        "Share of assignments of every expert, divided by the balanced share, during training. Purple experts get "
        "too few tokens, brown experts too many. A stripe that stays purple is a dead expert." + inputs.whose,
        drawing,
        table[["layer", "expert", "tokens", "load"]].to_dict("records"),
    )


def _edges(centers: np.ndarray) -> np.ndarray:
    """Return the edges of cells around ascending positive centers; a single cell's width equals its center."""
    if len(centers) == 1:
        return centers * np.array([0.5, 1.5])
    middles = (centers[1:] + centers[:-1]) / 2
    return np.array([2 * centers[0] - middles[0], *middles, 2 * centers[-1] - middles[-1]])


def restarts(inputs: FigureInputs) -> Figure:
    """Draw the attempts of every training run over wall time, with their outcomes and the repeated work."""
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
            marker, color = OUTCOMES.get(str(attempt["outcome"]), ("X", MUTED))
            axes.barh(row, end - begin, left=begin, height=0.5, color=BLUE, alpha=0.35)
            axes.plot(end, row, marker, color=color, markersize=12 if marker == "|" else 7, markeredgewidth=2)
            lost = attempt.get("lost_seconds", 0.0)
            if lost == lost and lost:
                axes.annotate(
                    f"−{lost:.3g} s",
                    (end, row),
                    (0, 9),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                    color=color,
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
            color=color,
            label=outcome,
            markeredgewidth=2,
        )
        for outcome, (marker, color) in OUTCOMES.items()
        if (table["outcome"] == outcome).any()
    ]
    drawing.legend(handles=keys, loc="outside lower center", ncols=len(keys) or 1)
    fewer = (
        f" The {TRAININGS} runs with the most attempts of {len(counts)} are shown." if len(counts) > TRAININGS else ""
    )
    return Figure(
        "Kills and resumes",
        "Every attempt of every training run over wall time. A diamond, a cross or a square marks an interruption; the "
        "number next to the mark is the time spent on repeated steps." + fewer + inputs.whose,
        drawing,
        table.to_dict("records"),
    )


LAYERS = 48
"""Maximum number of layers; a larger study shows its first layers."""
NUMBER_INCHES, CHARACTER_INCHES, BAR_INCHES = 0.27, 0.06, 0.8
"""Widths of a load printed in a cell, of a character of a layer's name, and of the color bar."""


def expert_loads(findings: Findings) -> Figure | None:
    """Draw each MoE model's expert loads at its largest token budget, one row per layer. Return None if no run has
    experts.
    """
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
        "the balanced share; experts are sorted within a layer. Purple experts get too few tokens, brown experts too "
        "many." + left_out,
        drawing,
        [
            {"model": name, "layer": layer, "expert_by_load": rank + 1, "load_over_balanced": load}
            for name, layer, loads in shown
            for rank, load in enumerate(loads)
        ],
    )


def _write(axes, cells: np.ndarray, norm: TwoSlopeNorm) -> None:
    """Print the load in every cell, in a light color on dark cells."""
    for (row, place), load in np.ndenumerate(cells):
        if np.isfinite(load):
            color = "#f4f4f4" if abs(float(norm(load)) - 0.5) > 0.27 else "#222222"
            axes.text(place + 0.5, row + 0.52, f"{load:.2f}", ha="center", va="center", fontsize=7, color=color)


MEASURES = {
    "load_cv": Axis("load_cv", "load CV, 0 = balanced"),
    "max_violation": Axis("max_violation", "worst load over balanced, −1"),
    "dropped_share": Axis("dropped_share", "assignments dropped, share"),
}


def routing_health(inputs: FigureInputs) -> Figure | None:
    """Draw routing statistics over tokens, a panel per statistic. Return None if the table has none."""
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
        for value, color in zip(values, classes(len(values)), strict=True):
            own = table[table[by] == value] if by else table
            label = f"{format(value)} experts" if by else "runs"
            marks = {"x": column(own, "tokens"), "y": column(own, name), "mark": "points", "color": color}
            series.append(Series(label=label, **marks))
        if name == "dropped_share" and not np.any(column(table, name) > 0):
            continue
        panels.append(Panel(x=TOKENS, y=MEASURES[name], series=series))
    return figure(
        "Routing health",
        "Statistics of every MoE model on the validation set: the spread of its experts' loads, the largest load, and "
        "the share of dropped assignments, if any are dropped. With healthy routing, these statistics are low and fall "
        "with tokens.",
        panels,
        columns=3,
        height=2.6,
    )


PLAN_UNITS = {
    "bytes": (1e9, "memory per chip, GB"),
    "seconds": (1e-3, "time per step, ms"),
    "flops": (1e12, "TFLOPs per chip"),
}


def plan_bars(inputs: FigureInputs) -> Figure:
    """Draw a panel per quantity with a bar per plan, stacked by part, and limits as lines."""
    table = inputs.table
    quantities = list(dict.fromkeys(table["quantity"]))
    plans = list(dict.fromkeys(table["plan"]))
    parts = list(dict.fromkeys(table["part"]))
    colors = dict(zip(parts, [*SERIES, MUTED, INK, *SERIES], strict=False))
    limited = "limit" in table and bool(table["limit"].notna().any())
    lines = sum(1 + str(plan).count("\n") for plan in plans)
    drawing, panels = grid(len(quantities), 2, height_inches=1.4 + 0.36 * lines, sharey=True)
    for quantity, axes in zip(quantities, panels, strict=True):
        own = table[table["quantity"] == quantity]
        unit, words = PLAN_UNITS.get(str(quantity), (1.0, str(quantity)))
        left = np.zeros(len(plans))
        for part in parts:
            width = np.array(
                [own[(own["plan"] == plan) & (own["part"] == part)]["value"].sum() / unit for plan in plans]
            )
            if width.any():
                axes.barh(plans, width, left=left, color=colors[part], edgecolor=PAPER, linewidth=0.6, height=0.6)
                left += width
        for total, plan in zip(left, range(len(plans)), strict=True):
            axes.annotate(
                f"{total:.3g}", (total, plan), (3, 0), textcoords="offset points", va="center", fontsize=7.5, color=INK
            )
        limit = own["limit"].dropna().unique() if "limit" in own else []
        for value in limit:
            axes.axvline(value / unit, color=RED, linewidth=1.2, linestyle="--")
        axes.set_xlim(0, 1.16 * max([left.max(), *(value / unit for value in limit)]))
        axes.set_xlabel(words)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
    panels[0].invert_yaxis()
    handles: list[Patch | Line2D] = [Patch(color=colors[part], label=str(part)) for part in parts]
    if limited:
        handles.append(Line2D([], [], color=RED, linewidth=1.2, linestyle="--", label="available on the chip"))
    drawing.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 5), handlelength=1.4)
    return Figure(
        "Plans, part by part",
        "Memory and time of a training step on one chip, by component; numbers are totals."
        + " The dashed line is the memory of the chip." * limited
        + inputs.whose,
        drawing,
        table.to_dict("records"),
    )
