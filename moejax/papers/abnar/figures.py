"""Draw Abnar et al. (2025), Figures 1 to 4, 7 to 9, 11 and 12: IsoFLOP surfaces of Eq. 6, their slices and optima.

The paper fits a polynomial to each budget's runs, which are not public. These surfaces show Eq. 6 at 6·N_a·D = C; a run
table adds points. The paper does not define N_a(N, S), so the inputs contain a convention for it
(``laws/active_params.py``), and captions state the convention.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from moejax.laws.conventions import FLOPS as CONVENTIONS
from moejax.laws.conventions import PARAMS
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.mixtures.sparsity import best_params_total, best_sparsity
from moejax.papers.abnar.records import BUDGETS, SIZES, SPARSITIES, shape_of
from moejax.papers.documents import ABNAR
from moejax.papers.record import Number
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.panels import (
    ACTIVE,
    FLOPS,
    LOSS,
    SPARSITY,
    TOTAL,
    Axis,
    Field,
    Panel,
    Series,
    curves,
    figure,
)
from moejax.report.figures.style import INK, MUTED, ORANGE, colored
from moejax.result import size

IDLE = replace(SPARSITY, scale="share")
SHARES = np.geomspace(1.0, 0.02, 19)
"""Active shares 1-S along the axis of sparsity."""
SLICES = tuple(sparsity for sparsity in SPARSITIES if sparsity != 0.25)
READS = ("flops", "sparsity", "params_total", "params_active")
CAP = 0.99
"""Largest sparsity of Figure 4."""
CONTEXT = 2048
WIDTHS = (512, 768, 1024, 1536, 2048, 3072, 4096)
LEAST_TOKENS_PER_PARAM = 0.5
"""Tokens per active parameter below which figures stay blank: such designs are implausible, and the law diverges."""


@ABNAR.experiment("1", columns=READS, shows="IsoFLOP surface at 1e20 FLOPs")
def surface(inputs: FigureInputs) -> Figure:
    """Draw Figure 1, at 1e20 FLOPs."""
    return figure(
        "IsoFLOP surface",
        f"Loss at C = 1e20 by {inputs.name}: along the line of best sizes, the loss falls with sparsity, total "
        f"parameters grow and active parameters shrink. {inputs.assumes}" + inputs.whose,
        _fields(inputs, 1e20),
        columns=2,
        height=3.1,
    )


@ABNAR.experiment("8", columns=READS, shows="IsoFLOP surfaces at five budgets")
def surfaces(inputs: FigureInputs) -> Figure:
    """Draw Figure 8: five budgets."""
    return figure(
        "IsoFLOP surfaces by budget",
        f"Loss over total parameters and sparsity by {inputs.name}; the line of best sizes moves up with the budget. "
        f"{inputs.assumes}" + inputs.whose,
        [_fields(inputs, budget)[0] for budget in BUDGETS],
        columns=3,
        height=2.5,
    )


@ABNAR.experiment("2", shows="slices of the IsoFLOP surface at 1e20 FLOPs")
def slices(inputs: FigureInputs) -> Figure:
    """Draw Figure 2, at 1e20 FLOPs."""
    return _slices(inputs, (1e20,), "IsoFLOP slices")


@ABNAR.experiment("9", shows="slices of the IsoFLOP surfaces at five budgets")
def slices_by_budget(inputs: FigureInputs) -> Figure:
    """Draw Figure 9: a row per budget."""
    return _slices(inputs, BUDGETS, "IsoFLOP slices by budget")


@ABNAR.experiment("3", shows="optimal sizes and loss by sparsity")
def by_sparsity(inputs: FigureInputs) -> Figure:
    """Draw Figure 3: N*, N_a* and L* against sparsity."""
    best = _best_by_budget(inputs)
    active = {flops: inputs.active_params(sizes, 1 - SHARES) for flops, sizes in best.items()}
    losses = {flops: loss(inputs, flops, sizes, 1 - SHARES) for flops, sizes in best.items()}
    return figure(
        "The best size at each sparsity",
        f"By {inputs.name}: at every budget, with growing sparsity, the best total size grows, the best active size "
        f"shrinks and the loss falls. {inputs.assumes}",
        [
            Panel(x=IDLE, y=axis, series=curves(BUDGETS, _at_budget, SHARES, values.__getitem__), title=title)
            for axis, values, title in ((TOTAL, best, "N*"), (ACTIVE, active, "N_a*"), (LOSS, losses, "L*"))
        ],
        columns=3,
        height=2.7,
    )


@ABNAR.experiment("4", shows="best sparsity by size and budget")
def best_sparsity_by_size(inputs: FigureInputs) -> Figure:
    """Draw Figure 4: S* against N, by budget."""
    sizes = np.geomspace(1e8, 3e10, 49)

    def best(flops: float) -> list[float]:
        return [float(best_sparsity(inputs.law, flops, total, inputs.active_params, cap=CAP)) for total in sizes]

    return figure(
        "The best sparsity at each size",
        f"By {inputs.name}: small models are best dense, large models as sparse as allowed ({CAP:g}); "
        "a larger budget moves the change to larger models. According to Appendix D.2, whose surfaces are not "
        f"public, the dense model is best up to 500M parameters for most budgets. {inputs.assumes}",
        [
            Panel(
                x=TOTAL,
                y=SPARSITY,
                series=curves(BUDGETS, _at_budget, sizes, best),
                level=CAP,
                level_label=f"highest sparsity allowed, {CAP:g}",
            )
        ],
        columns=1,
        height=3.2,
    )


@ABNAR.experiment("11", shows="least loss by sparsity and by budget")
def loss_by_sparsity(inputs: FigureInputs) -> Figure:
    """Draw Figure 11: L* against sparsity, and against the budget."""
    every = _best_by_budget(inputs)
    by_share = curves(BUDGETS, _at_budget, SHARES, lambda flops: loss(inputs, flops, every[flops], 1 - SHARES))
    by_budget = []
    chosen = (0.0, 0.5, 0.9, 0.98)
    for sparsity, mark in zip(chosen, ("line", "dashed", "dotted", "joined"), strict=True):
        least = [float(loss(inputs, flops, best_sizes(inputs, flops, [sparsity])[0], sparsity)) for flops in BUDGETS]
        by_budget.append(Series(label=_at_sparsity(sparsity), x=BUDGETS, y=least, mark=mark, color=MUTED))
    return figure(
        "Least loss against sparsity",
        f"By {inputs.name}, each point at its best size: the gain from sparsity is about the same at every budget. "
        f"{inputs.assumes}",
        [Panel(x=IDLE, y=LOSS, series=by_share), Panel(x=FLOPS, y=LOSS, series=by_budget)],
        columns=2,
        height=2.8,
    )


@ABNAR.experiment("12", shows="optimal sizes by budget")
def sizes_by_budget(inputs: FigureInputs) -> Figure:
    """Draw Figure 12: N* and N_a* against the budget, by sparsity."""
    best = {s: np.array([best_sizes(inputs, flops, [s])[0] for flops in BUDGETS]) for s in SPARSITIES}
    active = {sparsity: inputs.active_params(sizes, sparsity) for sparsity, sizes in best.items()}
    ratios = {sparsity: np.array(BUDGETS) / (6 * own) / own for sparsity, own in active.items()}
    ratio = Axis("tokens_per_active_param", "tokens per active parameter", "log")
    return figure(
        "The best sizes by budget",
        f"By {inputs.name}: both sizes grow with the budget at every sparsity. {inputs.assumes}",
        [
            Panel(x=FLOPS, y=axis, series=curves(SPARSITIES, _at_sparsity, BUDGETS, values.__getitem__), title=title)
            for axis, values, title in ((TOTAL, best, "N*"), (ACTIVE, active, "N_a*"), (ratio, ratios, "D*/N_a*"))
        ],
        columns=3,
        height=2.7,
    )


@ABNAR.experiment("7", law="", shows="FLOPs by Eq. 9 over 6·N_a")
def estimator(inputs: FigureInputs) -> Figure:
    """Draw Figure 7: the ratio of Eq. 9 to 6·N_a per token against total parameters."""
    series = []
    for sparsity, color in colored(SLICES):
        shapes = [shape_of(width, sparsity) for width in WIDTHS]
        by_eq_9, by_size = (
            np.array([CONVENTIONS[name].per_token(one, CONTEXT) for one in shapes])
            for name in ("abnar-eq9", "6-params-active")
        )
        totals = [PARAMS["abnar"].total(one) for one in shapes]
        label = _at_sparsity(sparsity)
        series.append(Series(label=label, x=totals, y=by_eq_9 / by_size, mark="joined", color=color))
    ratio = Axis("estimator_ratio", "FLOPs by Eq. 9 over 6·N_a·D")
    return figure(
        "How good 6·N_a·D is",
        "Training FLOPs by Eq. 9 divided by 6 · active parameters · tokens, at a context of 2048. The paper prints no "
        "shapes: these models have a width of 64 per layer and experts of width 4·d_model. The gap closes with size.",
        [Panel(x=TOTAL, y=ratio, series=series, level=1.0)],
        columns=1,
        height=3.1,
    )


def loss(inputs: FigureInputs, flops: float, total: ArrayLike, sparsity: ArrayLike) -> np.ndarray:
    """Return the loss of designs that spend a budget; NaN for designs with too few tokens."""
    total, sparsity = np.broadcast_arrays(np.asarray(total, float), np.asarray(sparsity, float))
    active = inputs.active_params(total, sparsity)
    tokens = flops / (FLOPS_PER_PARAM_AND_TOKEN * active)
    losses = evaluate(
        inputs.law, params_total=total, tokens=tokens, num_experts=1 / (1 - sparsity), top_k=1.0, params_active=active
    )
    return np.where(tokens > LEAST_TOKENS_PER_PARAM * active, losses, np.nan)


def best_sizes(inputs: FigureInputs, flops: float, sparsities: Iterable[float]) -> np.ndarray:
    """Return N* at every sparsity."""
    return np.array([float(best_params_total(inputs.law, flops, s, inputs.active_params)) for s in sparsities])


def _best_by_budget(inputs: FigureInputs) -> dict[float, np.ndarray]:
    return {flops: best_sizes(inputs, flops, 1 - SHARES) for flops in BUDGETS}


def _at_budget(flops: Number) -> str:
    return f"C = {short(flops)}"


def _at_sparsity(sparsity: float) -> str:
    return f"S = {100 * sparsity:g} %"


def _fields(inputs: FigureInputs, flops: float) -> list[Field]:
    """Return two maps of the loss at one budget: over sparsity and total parameters, and over sparsity and active
    parameters."""
    active_share = np.geomspace(1.0, 0.015, 41)
    sparsity = 1 - active_share
    best = best_sizes(inputs, flops, sparsity[::4])
    active = inputs.active_params(best, sparsity[::4])
    total = np.geomspace(best.min() / 6, best.max() * 6, 61)
    own = np.geomspace(active.min() / 6, best[0] * 6, 61)
    per_active = 1 / inputs.active_params(1.0, sparsity)
    fields = []
    for axis, xs, sizes, line in (
        (TOTAL, total, total[None, :], best),
        (ACTIVE, own, own[None, :] * per_active[:, None], active),
    ):
        zs = loss(inputs, flops, sizes, sparsity[:, None])
        floor = np.nanmin(zs)
        marks = [Series(label="best size", x=line, y=active_share[::4], color=ORANGE)]
        fields.append(
            Field(
                x=axis,
                y=IDLE,
                z=LOSS,
                xs=xs,
                ys=active_share,
                zs=np.where(zs < floor + 0.5, zs, np.nan),
                title=_at_budget(flops),
                marks=[*marks, *_points(inputs, flops, axis.column)],
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
    return [Series(label="runs", x=column(own, name), y=1 - column(own, "sparsity"), mark="open", color=INK)]


def _slices(inputs: FigureInputs, budgets: Sequence[float], title: str) -> Figure:
    return figure(
        title,
        f"Loss by {inputs.name} at a fixed budget: against sparsity at fixed total parameters, and against total and "
        f"active parameters at fixed sparsity. Stars mark each curve's minimum if it is not an end point. "
        f"{inputs.assumes}" + inputs.whose,
        [panel for budget in budgets for panel in _row(inputs, budget)],
        columns=3,
        height=2.5,
    )


def _row(inputs: FigureInputs, flops: float) -> list[Panel]:
    active_share = np.geomspace(1.0, 0.02, 61)
    by_sparsity, by_total, by_active = [], [], []
    for total, color in colored(SIZES):
        losses = loss(inputs, flops, total, 1 - active_share)
        by_sparsity += _curve(f"N = {size(total, 3)}", active_share, losses, color)
    for sparsity, color in colored(SLICES):
        best = best_sizes(inputs, flops, [sparsity])[0]
        total = np.geomspace(best / 12, best * 12, 61)
        losses = loss(inputs, flops, total, sparsity)
        keep = losses < np.nanmin(losses) + 0.3
        total, losses = total[keep], losses[keep]
        by_total += _curve(_at_sparsity(sparsity), total, losses, color, "dashed")
        by_active += _curve(_at_sparsity(sparsity), inputs.active_params(total, sparsity), losses, color, "dashed")
    return [
        Panel(x=IDLE, y=LOSS, series=by_sparsity, title=_at_budget(flops)),
        Panel(x=TOTAL, y=LOSS, series=by_total),
        Panel(x=ACTIVE, y=LOSS, series=by_active),
    ]


def _curve(label: str, xs: np.ndarray, ys: np.ndarray, color: str, mark: str = "line") -> list[Series]:
    """Return a curve, with a star at its minimum unless it is an end point."""
    lowest = int(np.nanargmin(ys))
    curve = Series(label=label, x=xs, y=ys, color=color, mark=mark)
    if lowest in (0, len(xs) - 1):
        return [curve]
    return [
        curve,
        Series(label="least loss", x=[xs[lowest]], y=[ys[lowest]], mark="stars", color=color, in_legend=False),
    ]
