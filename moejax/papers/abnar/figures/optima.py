"""Draw Abnar et al. (2025), Figures 3, 4, 11 and 12: the optima at each sparsity, size and budget, by Eq. 6."""

from __future__ import annotations

import numpy as np

from moejax.papers.abnar.figures.surfaces import IDLE, best_sizes, best_sparsities, loss
from moejax.papers.abnar.records import BUDGETS, SPARSITIES
from moejax.papers.documents import ABNAR
from moejax.papers.record import short
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.panels import ACTIVE, FLOPS, LOSS, SPARSITY, TOTAL, Axis, Panel, Series, figure
from moejax.report.figures.style import MUTED, coloured

SHARES = np.geomspace(1.0, 0.02, 19)
CAP = 0.99


@ABNAR.experiment("3", shows="optimal sizes and loss by sparsity")
def by_sparsity(inputs: FigureInputs) -> Figure:
    """Draw Figure 3: N*, N_a* and L* against sparsity."""
    totals, actives, losses = [], [], []
    for flops, colour in coloured(BUDGETS):
        best = best_sizes(inputs, flops, 1 - SHARES)
        label = f"C = {short(flops)}"
        totals.append(Series(label=label, x=SHARES, y=best, colour=colour))
        actives.append(Series(label=label, x=SHARES, y=inputs.active_params(best, 1 - SHARES), colour=colour))
        losses.append(Series(label=label, x=SHARES, y=loss(inputs, flops, best, 1 - SHARES), colour=colour))
    panels = [
        Panel(x=IDLE, y=TOTAL, series=totals, title="N*"),
        Panel(x=IDLE, y=ACTIVE, series=actives, title="N_a*"),
        Panel(x=IDLE, y=LOSS, series=losses, title="L*"),
    ]
    return figure(
        "The best size at each sparsity",
        f"By {inputs.name}: at every budget the best total grows, the best active size shrinks and the loss falls as "
        f"experts are idle more. {inputs.assumes}",
        panels,
        columns=3,
        height=2.7,
    )


@ABNAR.experiment("4", shows="best sparsity by size and budget")
def best_sparsity_by_size(inputs: FigureInputs) -> Figure:
    """Draw Figure 4: S* against N, by budget."""
    sizes = np.geomspace(1e8, 3e10, 49)
    series = [
        Series(
            label=f"C = {short(flops)}",
            x=sizes,
            y=best_sparsities(inputs, flops, sizes, CAP),
            colour=colour,
        )
        for flops, colour in coloured(BUDGETS)
    ]
    panel = Panel(x=TOTAL, y=SPARSITY, series=series, level=CAP)
    return figure(
        "The best sparsity at each size",
        f"By {inputs.name}: small models are best dense, large ones as sparse as allowed (the grey line, {CAP:g}); a "
        "larger budget moves the change to larger models. Appendix D.2 reads from its surfaces, which are not public, "
        f"that the dense model is best up to 500M for most budgets. {inputs.assumes}",
        [panel],
        columns=1,
        height=3.2,
    )


@ABNAR.experiment("11", shows="least loss by sparsity and by budget")
def loss_by_sparsity(inputs: FigureInputs) -> Figure:
    """Draw Figure 11: L* against sparsity, and against the budget."""
    every = {flops: best_sizes(inputs, flops, 1 - SHARES) for flops in BUDGETS}
    by_share = [
        Series(label=f"C = {short(flops)}", x=SHARES, y=loss(inputs, flops, best, 1 - SHARES), colour=colour)
        for (flops, best), colour in coloured(every.items())
    ]
    by_budget = []
    chosen = (0.0, 0.5, 0.9, 0.98)
    for sparsity, mark in zip(chosen, ("line", "dashed", "dotted", "joined"), strict=True):
        least = [float(loss(inputs, flops, best_sizes(inputs, flops, [sparsity])[0], sparsity)) for flops in BUDGETS]
        by_budget.append(Series(label=f"S = {100 * sparsity:g} %", x=BUDGETS, y=least, mark=mark, colour=MUTED))
    panels = [Panel(x=IDLE, y=LOSS, series=by_share), Panel(x=FLOPS, y=LOSS, series=by_budget)]
    return figure(
        "Least loss against sparsity",
        f"By {inputs.name}, every point at its best size: the gain of sparsity is about the same at every budget. "
        f"{inputs.assumes}",
        panels,
        columns=2,
        height=2.8,
    )


@ABNAR.experiment("12", shows="optimal sizes by budget")
def sizes_by_budget(inputs: FigureInputs) -> Figure:
    """Draw Figure 12: N* and N_a* against the budget, by sparsity."""
    totals, actives, ratios = [], [], []
    for sparsity, colour in coloured(SPARSITIES):
        best = np.array([best_sizes(inputs, flops, [sparsity])[0] for flops in BUDGETS])
        own = inputs.active_params(best, sparsity)
        tokens = np.array(BUDGETS) / (6 * own)
        label = f"S = {100 * sparsity:g} %"
        totals.append(Series(label=label, x=BUDGETS, y=best, colour=colour))
        actives.append(Series(label=label, x=BUDGETS, y=own, colour=colour))
        ratios.append(Series(label=label, x=BUDGETS, y=tokens / own, colour=colour))
    ratio = Axis("tokens_per_active_param", "tokens per active parameter", "log")
    panels = [
        Panel(x=FLOPS, y=TOTAL, series=totals, title="N*"),
        Panel(x=FLOPS, y=ACTIVE, series=actives, title="N_a*"),
        Panel(x=FLOPS, y=ratio, series=ratios, title="D*/N_a*"),
    ]
    return figure(
        "The best sizes by budget",
        f"By {inputs.name}: both sizes grow with the budget at every sparsity. {inputs.assumes}",
        panels,
        columns=3,
        height=2.7,
    )
