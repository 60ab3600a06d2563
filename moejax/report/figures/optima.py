"""Draw laws at a budget: IsoFLOP slices with the optimum, frontiers, and landscapes of designs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from moejax.design.frontier import Landscape, Point
from moejax.float64 import float64
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design
from moejax.laws.law import Law
from moejax.quantities import short
from moejax.report.figures.figure import Figure
from moejax.report.figures.style import BLUE, GREEN, ORANGE, PAPER, RC, grid, quantity_axis
from moejax.report.findings import Findings
from moejax.study.compute_optimum import ComputeOptimum, family

POINTS = 121
MARGIN = 3.0
"""Factor by which the curves extend beyond the runs and the optima."""


def isoflop_slice(findings: Findings) -> Figure | None:
    """Draw a panel per law that has a decision. Return None if no law has one."""
    analysed = findings.concluded.analysed
    deciding = [law for law in analysed.laws if any(d.law == law.name for d in analysed.decisions)]
    if not deciding:
        return None
    drawing, panels = grid(len(deciding), 2, height_inches=4.0, sharex=True)
    trained = (float(findings.runs["params_active"].min()), float(findings.runs["params_active"].max()))
    optima = [decision.checked.value["params_active"] for decision in analysed.decisions]
    active = np.geomspace(min(trained[0], *optima) / MARGIN, max(trained[1], *optima) * MARGIN, POINTS)
    rows = []
    for law, axes in zip(deciding, panels, strict=True):
        axes.axvspan(*trained, color=GREEN, alpha=0.12, linewidth=0, label="sizes that were trained")
        for decision in _of(law.name, analysed.decisions):
            color, line, marker = (ORANGE, "--", "^") if decision.expansion == 1 else (BLUE, "-", "o")
            losses = along(law.fit.law, decision.flops, decision.expansion, active)
            axes.plot(active, losses, line, color=color, label=_label(decision))
            _optimum(axes, decision, color, marker)
            rows += _rows(decision, active, losses)
        axes.set_xscale("log")
        # An undetermined interval extends beyond the axis limits.
        axes.set_xlim(active[0], active[-1])
        quantity_axis(axes.xaxis, active, most=5)
        axes.set_title(f"{law.name}, {short(_of(law.name, analysed.decisions)[0].flops, 3)} FLOPs")
        axes.set_xlabel("active parameters")
        _zoom(axes, rows, law.name)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16))
    panels[0].set_ylabel("loss by the law, nats/token")
    return Figure(
        "IsoFLOP slice",
        "Loss by each fitted law at one budget, from few active parameters and many tokens to the opposite (6 · active "
        f"· tokens = budget, {_times(analysed.decisions)} the largest trained). Markers are the closed-form optima "
        "with the bootstrap's 90 % intervals. The curves extrapolate outside the shaded sizes, and everywhere if the "
        "budget is larger than trained.",
        drawing,
        rows,
    )


def along(law: Law, flops: float, expansion: float, active: np.ndarray) -> np.ndarray:
    """Return a law's float64 loss at each number of active parameters, with the tokens that the budget allows."""
    with float64():
        tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * active)
        full = np.full_like(active, flops)
        design = Design(params_active=active, params_total=active * expansion, tokens=tokens, flops=full)
        return np.asarray(jax.vmap(law)(design), np.float64)


def _of(law: str, decisions: Sequence[ComputeOptimum]) -> list[ComputeOptimum]:
    """Return the decisions of a law, MoE models before dense models."""
    return sorted((d for d in decisions if d.law == law), key=lambda d: -d.expansion)


def _optimum(axes: Axes, decision: ComputeOptimum, color: str, marker: str) -> None:
    value, size = decision.checked.value, decision.intervals["params_active"]
    axes.plot([size.low, size.high], [value["loss"]] * 2, color=color, linewidth=3.5, alpha=0.35)
    axes.plot(value["params_active"], value["loss"], marker, color=color, markeredgecolor=PAPER, markersize=8, zorder=5)


def _label(decision: ComputeOptimum) -> str:
    open_ended = decision.intervals["params_active"].uninformative and not decision.few
    return family(decision) + (": size not determined" if open_ended else "")


def _zoom(axes: Axes, rows: list[dict[str, Any]], law: str) -> None:
    """Limit the loss axis, so that the steep ends of the curves do not hide the minima."""
    losses = [row["loss_nats_per_token"] for row in rows if row["law"] == law]
    low, high = min(losses), max(losses)
    valley = np.median(losses) - low
    top = min(high, low + 2.5 * valley)
    axes.set_ylim(low - 0.15 * (top - low), top + 0.05 * (top - low))


def _rows(decision: ComputeOptimum, active: np.ndarray, losses: np.ndarray) -> list[dict[str, Any]]:
    tokens = decision.flops / (FLOPS_PER_PARAM_AND_TOKEN * active)
    points = [*zip(active, tokens, losses, strict=True)]
    value = decision.checked.value
    optimum = (value["params_active"], value["tokens"], value["loss"])
    names = ("params_active", "tokens", "loss_nats_per_token")
    head = {"law": decision.law, "expansion": decision.expansion, "flops": decision.flops}
    return [
        {**head, "point": kind, **dict(zip(names, map(float, point), strict=True))}
        for kind, point in [*(("slice", point) for point in points), ("optimum", optimum)]
    ]


def _times(decisions: Sequence[ComputeOptimum]) -> str:
    return f"{decisions[0].extrapolation:.2g} times"


SIZES = ("params_total", "params_active", "tokens")


def draw_frontier(points: Sequence[Point], name: str, law: str, path: Path) -> None:
    """Draw a frontier of designs; the line of dense models with the same budget is dashed."""
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
    """Draw a landscape of designs as contours of equal loss or leverage."""
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
