"""Training loss against tokens: a panel per model, its trunk and the branches that decay from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from moejax.report.figures.figure import Figure
from moejax.report.figures.style import BLUE, FAINT, MUTED, ORANGE, WIDTH_INCHES, grid
from moejax.report.findings import Findings
from moejax.result import size
from moejax.train.directory.metrics import TRUNK, number

PANELS = 24
"""Models that get a panel; a larger study shows those trained first in its table."""
POINTS = 200
"""Points of one curve; longer logs are thinned evenly."""


def draw(findings: Findings) -> Figure | None:
    """Draw the training loss of every model. Return None if no model has a training log."""
    curves = {name: _curves(lines) for name, lines in findings.logs.items() if lines}
    if not curves:
        return None
    shown = dict(list(curves.items())[:PANELS])
    corpus = findings.concluded.corpus
    entropy = corpus.unigram_entropy if corpus else float("nan")
    # As many panels side by side as have room for their names.
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
        "Each model's trunk at a stable learning rate (blue) and a branch per token budget whose learning rate decays "
        "(orange); the other models' trunks are grey, the dotted line is the unigram entropy. A branch that drops "
        "below its trunk is the decay paying off. Losses are those of single batches." + left_out,
        drawing,
        [
            {"model": name, "phase": phase, **_point(line)}
            for name, own in shown.items()
            for phase, lines in own.items()
            for line in lines
        ],
    )


def _curves(lines: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return thinned log lines by phase, the trunk first, without skipped steps, which have no loss."""
    phases: dict[str, list[dict[str, Any]]] = {TRUNK: []}
    for line in (line for line in lines if math.isfinite(number(line["loss"]))):
        phases.setdefault(line["phase"], []).append(line)
    return {phase: own[:: -(-len(own) // POINTS)] for phase, own in phases.items() if own}


def _plot(axes: Axes, lines: list[dict[str, Any]], **style: Any) -> None:
    axes.plot([line["tokens"] for line in lines], [line["loss"] for line in lines], **style)


def _point(line: dict[str, Any]) -> dict[str, Any]:
    names = {"tokens": "tokens", "loss": "train_loss_nats_per_token", "learning_rate": "learning_rate"}
    return {ours: line.get(name) for name, ours in names.items()}
