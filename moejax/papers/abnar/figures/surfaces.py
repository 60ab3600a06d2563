"""Draw Abnar et al. (2025), Figures 1, 2, 8 and 9: the loss of a budget over size and sparsity, and its slices.

The paper fits a polynomial to each budget's runs, which are not public. These surfaces are Eq. 6 along 6·N_a·D = C; a
run table adds its points. The paper does not define N_a(N, S), so the inputs contain a convention for it
(``laws/active_params.py``), which captions name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.mixtures.sparsity import best_params_total, best_sparsity
from moejax.papers.abnar.records import BUDGETS
from moejax.papers.documents import ABNAR
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.panels import ACTIVE, LOSS, SPARSITY, TOTAL, Field, Panel, Series, figure
from moejax.report.figures.style import INK, ORANGE, coloured
from moejax.result import size

IDLE = replace(SPARSITY, scale="share")
SPARSITIES = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98)
READS = ("flops", "sparsity", "params_total", "params_active")
SIZES = (5e8, 1e9, 2e9, 4e9)
LEAST_TOKENS_PER_PARAM = 0.5
"""Tokens per active parameter below which designs are left blank: they are implausible, and the law diverges there."""


@ABNAR.experiment("1", columns=READS, shows="IsoFLOP surface at 1e20 FLOPs")
def surface(inputs: FigureInputs) -> Figure:
    """Draw Figure 1, at 1e20 FLOPs."""
    fields = _fields(inputs, 1e20)
    return figure(
        "IsoFLOP surface",
        f"Loss at C = 1e20 by {inputs.name}: along the line of best sizes the loss falls with sparsity, total "
        f"parameters grow and active ones shrink. {inputs.assumes}" + inputs.whose,
        fields,
        columns=2,
        height=3.1,
    )


@ABNAR.experiment("8", columns=READS, shows="IsoFLOP surfaces at five budgets")
def surfaces(inputs: FigureInputs) -> Figure:
    """Draw Figure 8: five budgets."""
    fields = [_fields(inputs, budget)[0] for budget in BUDGETS]
    return figure(
        "IsoFLOP surfaces by budget",
        f"Loss over total parameters and sparsity by {inputs.name}; the line of best sizes moves up with the budget. "
        f"{inputs.assumes}" + inputs.whose,
        fields,
        columns=3,
        height=2.5,
    )


@ABNAR.experiment("2", shows="its slices")
def slices(inputs: FigureInputs) -> Figure:
    """Draw Figure 2, at 1e20 FLOPs."""
    return _slices(inputs, (1e20,), "IsoFLOP slices")


@ABNAR.experiment("9", shows="their slices")
def slices_by_budget(inputs: FigureInputs) -> Figure:
    """Draw Figure 9: a row per budget."""
    return _slices(inputs, BUDGETS, "IsoFLOP slices by budget")


def loss(inputs: FigureInputs, flops: float, total: Any, sparsity: Any) -> np.ndarray:
    """Return the loss of designs that spend a budget, NaN if they have too few tokens."""
    total, sparsity = np.broadcast_arrays(np.asarray(total, float), np.asarray(sparsity, float))
    active = inputs.active_params(total, sparsity)
    tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * active)
    losses = evaluate(
        inputs.law, params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0, params_active=active
    )
    return np.where(tokens > LEAST_TOKENS_PER_PARAM * active, losses, np.nan)


def best_sizes(inputs: FigureInputs, flops: float, sparsities: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return N* at every sparsity."""
    return np.array([float(best_params_total(inputs.law, flops, s, inputs.active_params)) for s in sparsities])


def best_sparsities(inputs: FigureInputs, flops: float, sizes: Sequence[float] | np.ndarray, cap: float) -> np.ndarray:
    """Return S* at every size, at most ``cap``."""
    return np.array([float(best_sparsity(inputs.law, flops, total, inputs.active_params, cap=cap)) for total in sizes])


def _fields(inputs: FigureInputs, flops: float) -> list[Field]:
    active_share = np.geomspace(1.0, 0.015, 41)
    sparsity = 1 - active_share
    best = best_sizes(inputs, flops, sparsity[::4])
    low, high = best.min() / 6, best.max() * 6
    total = np.geomspace(low, high, 61)
    by_total = loss(inputs, flops, total[None, :], sparsity[:, None])
    own = np.geomspace(inputs.active_params(best, sparsity[::4]).min() / 6, best[0] * 6, 61)
    per_active = 1 / inputs.active_params(1.0, sparsity)
    by_active = loss(inputs, flops, own[None, :] * per_active[:, None], sparsity[:, None])
    fields = []
    for axis, xs, zs, line in (
        (TOTAL, total, by_total, best),
        (ACTIVE, own, by_active, inputs.active_params(best, sparsity[::4])),
    ):
        floor = np.nanmin(zs)
        marks = [Series(label="best size", x=line, y=active_share[::4], colour=ORANGE)]
        marks += _points(inputs, flops, axis.column)
        fields.append(
            Field(
                x=axis,
                y=IDLE,
                z=LOSS,
                xs=xs,
                ys=active_share,
                zs=np.where(zs < floor + 0.5, zs, np.nan),
                title=f"C = {flops:.0e}".replace("e+", "e"),
                marks=marks,
                contours=floor + np.array([0.005, 0.02, 0.05, 0.1, 0.2, 0.4]),
            )
        )
    return fields


def _points(inputs: FigureInputs, flops: float, name: str) -> list[Series]:
    if not inputs.has("flops", "sparsity", name):
        return []
    own = inputs.table[np.isclose(column(inputs.table, "flops"), flops, rtol=0.15)]
    if not len(own):
        return []
    return [Series(label="runs", x=column(own, name), y=1 - column(own, "sparsity"), mark="open", colour=INK)]


def _slices(inputs: FigureInputs, budgets: Sequence[float], title: str) -> Figure:
    panels = [panel for budget in budgets for panel in _row(inputs, budget)]
    return figure(
        title,
        f"Loss by {inputs.name} at a fixed budget: against sparsity at fixed total parameters, and against total and "
        f"active parameters at fixed sparsity. Stars are the least loss of each curve, where it lies inside. "
        f"{inputs.assumes}" + inputs.whose,
        panels,
        columns=3,
        height=2.5,
    )


def _row(inputs: FigureInputs, flops: float) -> list[Panel]:
    name = f"C = {flops:.0e}".replace("e+", "e")
    active_share = np.geomspace(1.0, 0.02, 61)
    by_sparsity, by_total, by_active = [], [], []
    for total, colour in coloured(SIZES):
        losses = loss(inputs, flops, total, 1 - active_share)
        by_sparsity += _curve(f"N = {size(total, 3)}", active_share, losses, colour)
    for sparsity, colour in coloured(SPARSITIES):
        best = best_sizes(inputs, flops, [sparsity])[0]
        total = np.geomspace(best / 12, best * 12, 61)
        losses = loss(inputs, flops, total, sparsity)
        keep = losses < np.nanmin(losses) + 0.3
        total, losses = total[keep], losses[keep]
        label = f"S = {100 * sparsity:g} %"
        by_total += _curve(label, total, losses, colour, dotted=True)
        by_active += _curve(label, inputs.active_params(total, sparsity), losses, colour, dotted=True)
    return [
        Panel(x=IDLE, y=LOSS, series=by_sparsity, title=name),
        Panel(x=TOTAL, y=LOSS, series=by_total),
        Panel(x=ACTIVE, y=LOSS, series=by_active),
    ]


def _curve(label: str, xs: np.ndarray, ys: np.ndarray, colour: str, *, dotted: bool = False) -> list[Series]:
    lowest = int(np.nanargmin(ys))
    curve = Series(label=label, x=xs, y=ys, colour=colour, mark="dashed" if dotted else "line")
    if lowest in (0, len(xs) - 1):
        return [curve]
    star = Series(label="least loss", x=[xs[lowest]], y=[ys[lowest]], mark="stars", colour=colour, in_legend=False)
    return [curve, star]
