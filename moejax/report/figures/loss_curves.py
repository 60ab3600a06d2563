"""Draw loss curves: measured and predicted losses, schedules, trunks with their branches, and annealed losses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from moejax.curves.annealed import LEVEL, AnnealedLosses
from moejax.design.schedule import BestSchedule
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import LOSS, MARKS, TOKENS, Axis, Panel, Series, figure
from moejax.report.figures.style import (
    BLUE,
    FAINT,
    MUTED,
    ORANGE,
    SERIES,
    WIDTH_INCHES,
    colored,
    grid,
    legend_columns,
    lines_of,
    markers_of,
)
from moejax.report.findings import Findings
from moejax.result import size
from moejax.run_table import DataFrame
from moejax.study.annealed import StudyAnnealed
from moejax.train.directory.metrics import TRUNK, number

STEP = Axis("step", "step")
RATE = Axis("learning_rate", "learning rate")
MOST = 400
"""Maximum number of points of a line."""
MOST_MEASURED = 30
"""Maximum number of measured points per curve; more would cover the lines."""
STEEP = 0.7
"""Share of the losses within the axis limits; the high losses of the first steps would compress the rest."""


def fitted_curves(table: DataFrame, best: BestSchedule | None = None, level: float = 0.9) -> Figure:
    """Draw measured losses as points and predicted losses as lines, dashed for held-out curves.

    Args:
      table: columns run, role, step, lr, loss (predicted), measured.
      best: a ``BestSchedule`` to draw in a second panel.
    """
    losses, rates = [], []
    names = list(dict.fromkeys(table["run"]))
    for name, color in zip(names, itertools.cycle(SERIES), strict=False):
        own = table[table["run"] == name]
        own = own.iloc[:: max(1, len(own) // MOST)]
        held_out = (own["role"] == "held out").all()
        mark = "dashed" if held_out else "line"
        few = own.iloc[:: max(1, len(own) // MOST_MEASURED)]
        losses.append(Series(label="measured", x=few["step"], y=few["measured"], mark="points", color=MUTED))
        label = f"{name} (not fitted)" if held_out else name
        losses.append(Series(label=label, x=own["step"], y=own["loss"], mark=mark, color=color))
        rates.append(Series(label=label, x=own["step"], y=own["lr"], mark=mark, color=color, in_legend=False))
    panels = [
        Panel(x=STEP, y=LOSS, series=losses, title="Loss", ylim=_view(table)),
        Panel(x=STEP, y=RATE, series=rates, title="Schedules"),
    ]
    if best is not None:
        steps = np.unique(np.linspace(1, len(best.rates), MOST).astype(int))
        every = {"best under the law": best.rates, **{name: other for name, (other, _) in best.others.items()}}
        series = [
            Series(label=name, x=steps, y=own[steps - 1], mark="line" if not i else "dashed", color=SERIES[i])
            for i, (name, own) in enumerate(every.items())
        ]
        panels.append(Panel(x=STEP, y=RATE, series=series, title=f"Best for {len(best.rates):,} steps"))
    extrapolated = " Right: the schedule with the lowest loss under the law; no curve with this schedule was measured."
    said = "" if best is None else extrapolated
    return figure(
        "Loss curves and their law",
        f"Points are a sample of the measured losses; lines are the law, dashed for curves that were not fitted.{said}",
        panels,
        columns=len(panels),
        height=3.2,
    )


def _view(table: DataFrame) -> tuple[float, float]:
    """Return the limits of the loss axis, excluding the steep initial losses."""
    both = np.concatenate([table["measured"], table["loss"]])
    low, high = float(both.min()), float(np.quantile(both, STEEP))
    return low - 0.08 * (high - low), high


PANELS = 24
"""Maximum number of panels; a larger study shows its first models."""
POINTS = 200
"""Maximum number of points per curve; longer logs are thinned evenly."""


def training_curves(findings: Findings) -> Figure | None:
    """Draw the training loss of every model. Return None if no model has a training log."""
    curves = {name: _curves(lines) for name, lines in findings.logs.items() if lines}
    if not curves:
        return None
    shown = dict(list(curves.items())[:PANELS])
    corpus = findings.concluded.corpus
    entropy = corpus.unigram_entropy if corpus else float("nan")
    # Each panel must be wide enough for its title.
    columns = max(1, min(5, int(WIDTH_INCHES / (0.3 + 0.08 * max(map(len, shown))))))
    drawing, panels = grid(len(shown), columns, height_inches=1.55, sharex=True, sharey=True)
    for (name, own), axes in zip(shown.items(), panels, strict=True):
        for other in shown.values():
            _plot(axes, other.get(TRUNK, []), color=FAINT, linewidth=0.8)
        for phase, lines in own.items():
            on_trunk = phase == TRUNK
            start = [line for line in own[TRUNK] if line["tokens"] < lines[0]["tokens"]][-1:]
            _plot(axes, start + lines, color=BLUE if on_trunk else ORANGE, linewidth=1.5, zorder=3 if on_trunk else 4)
        axes.axhline(entropy, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        axes.set_title(name, fontsize=8)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value, 3)))
    losses = [line["loss"] for own in shown.values() for lines in own.values() for line in lines]
    panels[0].set_ylim(min(losses) - 0.1, float(np.nanmax([entropy, sorted(losses)[int(0.97 * len(losses))]])) + 0.15)
    drawing.supxlabel("training tokens", fontsize=8.5)
    drawing.supylabel("training loss, nats/token", fontsize=8.5)
    left_out = f" The first {PANELS} of {len(curves)} models are shown." if len(curves) > PANELS else ""
    return Figure(
        "Training curves",
        "Blue: each model's trunk, trained at a stable learning rate. Orange: a branch per token budget, in which the "
        "learning rate decays, so that the loss drops below the trunk's. Grey: the other models' trunks. Dotted line: "
        "the unigram entropy. Losses are those of single batches." + left_out,
        drawing,
        [
            {"model": name, "phase": phase, **_point(line)}
            for name, own in shown.items()
            for phase, lines in own.items()
            for line in lines
        ],
    )


def _curves(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return thinned log lines by phase, trunk first. Skipped steps, which have no loss, are left out."""
    phases: dict[str, list[dict[str, Any]]] = {TRUNK: []}
    for line in (line for line in lines if math.isfinite(number(line["loss"]))):
        phases.setdefault(line["phase"], []).append(line)
    return {phase: own[:: -(-len(own) // POINTS)] for phase, own in phases.items() if own}


def _plot(axes: Axes, lines: list[dict[str, Any]], **style: Any) -> None:
    axes.plot([line["tokens"] for line in lines], [line["loss"] for line in lines], **style)


def _point(line: dict[str, Any]) -> dict[str, Any]:
    names = {"tokens": "tokens", "loss": "train_loss_nats_per_token", "learning_rate": "learning_rate"}
    return {ours: line.get(name) for name, ours in names.items()}


LEGEND = 24
"""Maximum number of legend entries; the CSV names all runs."""


def losses_over_tokens(inputs: FigureInputs) -> Figure:
    """Draw each run's smoothed training loss and validation loss over tokens, with branches dashed."""
    table = inputs.table
    runs = list(dict.fromkeys(table["run"]))
    drawing, (axes,) = grid(1, 1, height_inches=3.8)
    colors = dict(colored(runs) if len(runs) > len(SERIES) else zip(runs, SERIES, strict=False))
    markers = markers_of(colors)
    named, branched = len(runs) <= LEGEND, bool((table["phase"] != TRUNK).any())
    trunks: dict[str, Any] = dict.fromkeys(runs, "-") if branched else lines_of(runs)
    validated = "validation_loss" in table and bool(table["validation_loss"].notna().any())
    for run, color in colors.items():
        for phase, own in table[table["run"] == run].groupby("phase", sort=False):
            few = own.iloc[:: max(1, len(own) // MOST)]
            drawn = few if few.index[-1] == own.index[-1] else pd.concat([few, own.iloc[-1:]])
            line = trunks[run] if phase == TRUNK else MARKS["dashed"]["linestyle"]
            axes.plot(drawn["tokens"], drawn["smoothed"], color=color, linestyle=line)
            if phase != TRUNK:
                axes.plot(own["tokens"].iloc[0], own["smoothed"].iloc[0], "|", color=color, markersize=9)
            if "validation_loss" in own and (held := own[own["validation_loss"].notna()]).shape[0]:
                face = "none" if phase == TRUNK else color
                style: dict[str, Any] = {"marker": markers[run], "markerfacecolor": face, "linewidth": 0.8}
                axes.plot(held["tokens"], held["validation_loss"], color=color, linestyle=line, **style)
    losses = np.sort(np.concatenate([column(table, name) for name in ("smoothed", "validation_loss") if name in table]))
    losses, cut = losses[np.isfinite(losses)], ""
    if len(losses):
        low, high = losses[0], losses[int(0.97 * (len(losses) - 1))]
        margin = 0.06 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)
        if losses[-1] > high + margin:
            cut = f" Losses above {high + margin:.2f}, up to {losses[-1]:.2f}, are outside the axis."
            axes.text(
                0.98, 0.97, cut.strip(), transform=axes.transAxes, ha="right", va="top", fontsize=7.5, color=MUTED
            )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value, 3)))
    axes.set(xlabel="training tokens", ylabel="loss, nats/token")
    handles = []
    if named:
        shown_markers = markers if validated else dict.fromkeys(markers, "")
        handles = [
            Line2D(
                [],
                [],
                label=str(run),
                color=color,
                linestyle=trunks[run],
                marker=shown_markers[run],
                markerfacecolor="none",
            )
            for run, color in colors.items()
        ]
    of_branches = branched and validated and bool(table["validation_loss"][table["phase"] != TRUNK].notna().any())
    handles += [
        Line2D([], [], color=MUTED, label=label, **MARKS[mark])
        for label, mark, shown in (
            ("training loss, smoothed", "line", True),
            ("branch with decaying learning rate", "dashed", branched),
            ("validation loss", "open", validated),
            ("validation loss of a branch", "points", of_branches),
        )
        if shown
    ]
    drawing.legend(
        handles=handles, loc="outside lower center", ncols=legend_columns([str(one.get_label()) for one in handles])
    )
    shown = f"{runs[0]}, one" if len(runs) == 1 else f"{len(runs):,}"
    branches = " Dashed lines are branches with a decaying learning rate, from the tick on their trunk to their budget."
    circles = " Open markers are the validation loss" + ", filled ones that of a branch" * of_branches + "."
    ramp = f" Colors follow the order of the {len(runs)} runs in the data."
    return Figure(
        "Loss over tokens",
        f"Loss of {shown} training run{'' if len(runs) == 1 else 's'} over training tokens. Lines are the smoothed "
        f"training loss.{branches * branched}{circles * validated}{cut}{ramp * (not named)}{inputs.whose}",
        drawing,
        table.to_dict("records"),
    )


ANNEALED_PANELS = 12
"""Maximum number of panels."""
NOT_TRAINED = SERIES[2]


def annealed_losses(annealed: StudyAnnealed) -> Figure:
    """Draw predicted and measured annealed losses, one panel per model."""
    shown = dict(list(annealed.models.items())[:ANNEALED_PANELS])
    panels = [_panel(name, one, annealed.table[annealed.table["model"] == name]) for name, one in shown.items()]
    left = (
        f" The first {ANNEALED_PANELS} of {len(annealed.models)} models are shown."
        if len(annealed.models) > ANNEALED_PANELS
        else ""
    )
    return figure(
        "Annealed losses, predicted and measured",
        "Grey: the trunk at its constant learning rate. Filled: the measured ends of its branches. Open: each end, "
        "predicted from the trunk and the other branches only. Squares: budgets without a trained branch. Vertical "
        f"lines: {LEVEL:.0%} prediction intervals.{left}",
        panels,
        columns=min(3, len(panels)),
        height=2.6,
    )


def _panel(name: str, one: AnnealedLosses, table: DataFrame) -> Panel:
    batch = float(table["batch_tokens"].iloc[0])
    first = min(left.end for left in one.left_out) / 2
    kept = one.trunk.steps >= first
    ends = np.array([left.end for left in one.left_out]) * batch
    measured, guesses = np.array([left.measured for left in one.left_out]), [left.predicted for left in one.left_out]
    guessed = table[table["is_predicted"] == 1]
    series = [
        Series(label="trunk", x=one.trunk.steps[kept] * batch, y=one.trunk.loss[kept], color=MUTED, width=1.0),
        *_ranges(ends, [p.low for p in guesses], [p.high for p in guesses], ORANGE),
        Series(label="measured", x=ends, y=measured, mark="points", color=BLUE),
        Series(label="predicted without it", x=ends, y=[p.loss for p in guesses], mark="open", color=ORANGE),
    ]
    if len(guessed):
        tokens = guessed["tokens"].to_numpy(np.float64)
        series += _ranges(tokens, guessed["loss_low"], guessed["loss_high"], NOT_TRAINED)
        series.append(
            Series(label="predicted, not trained", x=tokens, y=guessed["loss"], mark="squares", color=NOT_TRAINED)
        )
    return Panel(x=TOKENS, y=LOSS, series=series, title=name)


def _ranges(tokens: np.ndarray, low: object, high: object, color: str) -> list[Series]:
    return [
        Series(
            label=f"{LEVEL:.0%} interval", x=[x, x], y=[a, b], mark="interval", color=color, width=1.2, in_legend=False
        )
        for x, a, b in zip(tokens, np.asarray(low), np.asarray(high), strict=True)
    ]
