"""Chapter 002's frontier: the loss of one budget over active parameters and expansion, and the best by budget."""

from __future__ import annotations

import numpy as np

from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.effective_params import compute_optimal
from moejax.papers.chapter_002 import BUDGET, CONFIGURATIONS, GRID_EXPANSION
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs, evaluate
from moejax.report.figures.panels import ACTIVE, EXPANSION, FLOPS, LOSS, Axis, Field, Panel, Series, draw
from moejax.report.figures.style import INK, ORANGE, ramp

ACTIVES = np.geomspace(2e9, 4e11, 61)
EXPANSIONS = np.geomspace(1.0, 32.0, 41)
BUDGETS = np.geomspace(1e21, 1e26, 31)


def frontier(inputs: FigureInputs) -> Figure:
    """Listing 2's grid as a heat map, and L*(C) at each expansion."""
    law = inputs.law
    active, expansion = ACTIVES[None, :], EXPANSIONS[:, None]
    tokens = BUDGET / (FLOPS_PER_PARAM_AND_TOKEN * active)
    found = evaluate(law, params_active=active, params_total=active * expansion, tokens=tokens)
    best = [float(compute_optimal(law, BUDGET, g).value["params_active"]) for g in EXPANSIONS]
    marks = [Series(label="best active size", x=best, y=EXPANSIONS, colour=ORANGE)]
    for (name, (own, ratio, *_)), mark in zip(CONFIGURATIONS.items(), ("squares", "stars", "points"), strict=True):
        marks.append(Series(label=name, x=[own], y=[ratio], mark=mark, colour=INK))
    floor = float(np.nanmin(found))
    field = Field(
        x=ACTIVE,
        y=EXPANSION,
        z=LOSS,
        xs=ACTIVES,
        ys=EXPANSIONS,
        zs=found,
        title="C = 3.4e24",
        marks=marks,
        contours=floor + np.array([0.002, 0.005, 0.01, 0.02, 0.04, 0.08]),
    )
    chosen = [g for g in GRID_EXPANSION if g in (1.0, 4.0, 16.0, 32.0)]
    dense = _best_losses(inputs, 1.0)
    series = [
        Series(label=f"G = {g:g}", x=BUDGETS, y=dense - _best_losses(inputs, g), colour=colour)
        for g, colour in zip(chosen, ramp(len(chosen)), strict=True)
        if g > 1
    ]
    gain = Axis("gain_over_dense_nats_per_token", "gain over dense, nats/token", "log")
    panels = [field, Panel(x=FLOPS, y=gain, series=series, title="compute-optimal")]
    drawing, rows = draw(panels, columns=2, height=3.3)
    return Figure(
        "The frontier of one budget",
        f"By {inputs.name}. Left: loss at equal compute; the dense column is the lower edge. Right: what expansion is "
        "worth at each budget's optimum. It never changes sign and shrinks with compute: the law has no crossover.",
        drawing,
        rows,
    )


def _best_losses(inputs: FigureInputs, expansion: float) -> np.ndarray:
    active = np.array([float(compute_optimal(inputs.law, c, expansion).value["params_active"]) for c in BUDGETS])
    tokens = BUDGETS / (FLOPS_PER_PARAM_AND_TOKEN * active)
    return evaluate(inputs.law, params_active=active, params_total=active * expansion, tokens=tokens)
