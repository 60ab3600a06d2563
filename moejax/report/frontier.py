"""Draw a frontier (loss and sizes of the best designs against a budget) and a landscape (over two budgets)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as Drawing

from moejax.design.frontier import Landscape, Point
from moejax.report.figures.style import RC, quantity_axis

SIZES = ("params_total", "params_active", "tokens")


def draw(points: Sequence[Point], name: str, law: str, path: Path) -> None:
    """Write the figure; the dense model of the same budget is dashed."""
    with rc_context(RC):
        drawing = Drawing(figsize=(9, 3.6), layout="constrained")
        left, right = drawing.subplots(1, 2)
        for kind, style in (("best", "o-"), ("dense", "s--")):
            known: list[tuple[float, Any]] = [(p.budget, best) for p in points if (best := getattr(p, kind))]
            if known:
                budgets = [budget for budget, _ in known]
                left.plot(budgets, [one.values[one.problem.program.output] for _, one in known], style, label=kind)
                for size in SIZES if kind == "best" else ():
                    if size in known[0][1].values:
                        right.plot(budgets, [one.values[size] for _, one in known], style, label=size.replace("_", " "))
        equal = [(p.budget, p.equal.loss) for p in points if p.equal]
        if equal:
            left.plot(*zip(*equal, strict=True), "^:", label="dense of equal N and C")
        left.set(xscale="log", xlabel=name.replace("_", " "), ylabel="loss, nats per token", title=law.split(" (")[0])
        right.set(xscale="log", yscale="log", xlabel=name.replace("_", " "), title="the best designs")
        for axis in (left.xaxis, right.xaxis):
            quantity_axis(axis, axis.get_view_interval())
        quantity_axis(right.yaxis, right.yaxis.get_view_interval())
        for axes in (left, right):
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        drawing.savefig(path, dpi=150)


def draw_landscape(landscape: Landscape, law: str, path: Path) -> None:
    """Write the figure: lines of equal loss, or of equal leverage."""
    with rc_context(RC):
        drawing = Drawing(figsize=(5.2, 4), layout="constrained")
        axes = drawing.subplots()
        lines = axes.contourf(*landscape.values, landscape.heights.T, levels=14, cmap="viridis")
        drawing.colorbar(lines, label=landscape.goal.replace("_", " "))
        first, second = (name.replace("_", " ") for name in landscape.names)
        axes.set(xscale="log", yscale="log", xlabel=first, ylabel=second, title=law.split(" (")[0])
        for axis in (axes.xaxis, axes.yaxis):
            quantity_axis(axis, axis.get_view_interval())
        drawing.savefig(path, dpi=150)
