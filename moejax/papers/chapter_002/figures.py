"""Draw chapter 002: its widget, Listing 2's grid, the frontier of runs, and laws of a mixture's domains."""

from __future__ import annotations

import numpy as np

from moejax.errors import UserError
from moejax.fit.domains import BY_DOMAIN, ONE_LAW
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.mixtures.effective_params import compute_optimal
from moejax.papers.chapter_002.records import BUDGET, CONFIGURATIONS, GRID_EXPANSION
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.panels import ACTIVE, EXPANSION, FLOPS, LOSS, TOKENS, Axis, Field, Panel, Series, figure
from moejax.report.figures.style import BLUE, INK, MUTED, ORANGE, classes, coloured
from moejax.report.findings import frontier
from moejax.run_table import DataFrame

ACTIVES = np.geomspace(2e9, 4e11, 61)
EXPANSIONS = np.geomspace(1.0, 32.0, 41)
BUDGETS = np.geomspace(1e21, 1e26, 31)
SLIDER = np.geomspace(1e20, 1e26, 61)
"""Budgets of the widget's slider."""


def widget(inputs: FigureInputs) -> Figure:
    """Draw the widget's three presets: L against C at one N_act and G, over the dense curve of the same N_act."""
    panels = []
    for name, (active, expansion, *_) in CONFIGURATIONS.items():
        sizes = {"params_active": active, "tokens": SLIDER / (FLOPS_PER_PARAM_AND_TOKEN * active)}
        mixture, dense = (evaluate(inputs.law, params_total=active * g, **sizes) for g in (expansion, 1.0))
        here = float(np.exp(np.interp(np.log(BUDGET), np.log(SLIDER), np.log(mixture))))
        series = [
            Series(label="dense, G = 1, of equal active parameters", x=SLIDER, y=dense, colour=MUTED),
            Series(label="the mixture", x=SLIDER, y=mixture, colour=BLUE),
            Series(label="C = 3.4e24", x=[BUDGET], y=[here], mark="stars", colour=ORANGE),
        ]
        panels.append(Panel(x=FLOPS, y=LOSS, series=series, title=name, note=f"G = {expansion:g}"))
    return figure(
        "The widget's presets",
        f"By {inputs.name}: all compute goes into tokens, D = C/(6·N_act). At G = 1 the two curves are one; at a "
        "larger G the mixture's lies below at every compute, also that of Switch, of which the chapter says otherwise.",
        panels,
        columns=3,
        height=2.7,
        sharey=True,
    )


def grid(inputs: FigureInputs) -> Figure:
    """Draw Listing 2's grid as a heat map, and L*(C) at each expansion."""
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
        for g, colour in coloured(chosen)
        if g > 1
    ]
    gain = Axis("gain_over_dense_nats_per_token", "gain over dense, nats/token", "log")
    panels = [field, Panel(x=FLOPS, y=gain, series=series, title="compute-optimal")]
    return figure(
        "The frontier of one budget",
        f"By {inputs.name}. Left: loss at equal compute; the dense column is the lower edge. Right: what expansion is "
        "worth at each budget's optimum. It never changes sign and shrinks with compute: the law has no crossover.",
        panels,
        columns=2,
        height=3.3,
    )


def _best_losses(inputs: FigureInputs, expansion: float) -> np.ndarray:
    active = np.array([float(compute_optimal(inputs.law, c, expansion).value["params_active"]) for c in BUDGETS])
    tokens = BUDGETS / (FLOPS_PER_PARAM_AND_TOKEN * active)
    return evaluate(inputs.law, params_active=active, params_total=active * expansion, tokens=tokens)


def of_runs(inputs: FigureInputs) -> Figure:
    """Draw the frontier of runs, unbeaten by runs with less compute, and Listing 2's grid by the law of these runs."""
    runs, cells = (inputs.table[inputs.table["part"] == part] for part in ("run", "law"))
    series = _by_expansion(runs)
    dense = runs[runs["expansion"] <= DENSE]
    for own, label, colour in ((dense, "frontier of dense runs", MUTED), (runs[runs["expansion"] > DENSE], MIXED, INK)):
        if len(own):
            best = frontier(own, "flops")
            series.append(Series(label=label, x=column(best, "flops"), y=column(best, "loss"), colour=colour))
    panels: list[Panel | Field] = [Panel(x=FLOPS, y=LOSS, series=series, title="runs")]
    if len(cells):
        losses = cells.pivot_table(index="expansion", columns="params_active", values="loss")
        sizes, ratios, found = (np.asarray(each, np.float64) for each in (losses.columns, losses.index, losses))
        best = np.unravel_index(int(np.argmin(found)), found.shape)
        marks = [
            Series(label="runs", x=column(runs, "params_active"), y=column(runs, "expansion"), mark="open", colour=INK),
            Series(label="least", x=[sizes[best[1]]], y=[ratios[best[0]]], mark="stars", colour=ORANGE),
        ]
        title = f"by the law of the runs, C = {float(cells['flops'].iloc[0]):.2g}"
        panels.append(
            Field(x=ACTIVE, y=EXPANSION, z=LOSS, xs=sizes, ys=ratios, zs=found, title=title, marks=marks, contours=6)
        )
    return figure(
        "The frontier of runs",
        "Left: every run at its compute 6·N_act·D; a line joins the runs of its kind that none with as little compute "
        "beats. Right: loss at the largest run's compute by the law fitted to the runs, over sizes and G that were "
        "trained; the lower edge is dense." + inputs.whose,
        panels,
        columns=2,
        height=3.3,
    )


DENSE = 1 + 1e-9
MIXED = "frontier of mixtures"


def _by_expansion(runs: DataFrame) -> list[Series]:
    """Return points in up to five classes of G, with dense runs as their own class."""
    dense, mixed = runs[runs["expansion"] <= DENSE], runs[runs["expansion"] > DENSE]
    # Models of one design have slightly different G at different sizes.
    values = np.unique([float(f"{value:.2g}") for value in column(mixed, "expansion")])
    parts = np.array_split(values, min(4, max(len(values), 1)))
    groups = [("dense", dense)] if len(dense) else []
    for own in parts:
        if len(own):
            ends = dict.fromkeys(f"{value:.2g}" for value in (own[0], own[-1]))
            rows = mixed[[own[0] <= float(f"{value:.2g}") <= own[-1] for value in column(mixed, "expansion")]]
            groups.append((f"G = {' to '.join(ends)}", rows))
    return [
        Series(label=label, x=column(own, "flops"), y=column(own, "loss"), mark="points", colour=colour)
        for (label, own), colour in zip(groups, classes(len(groups)), strict=True)
    ]


DATA_TERM = Axis("loss_left_to_tokens_nats_per_token", "loss that more tokens take off", "log")
MISS = Axis("predicted_minus_measured_nats_per_token", "predicted minus measured, nats/token")


def domains(inputs: FigureInputs) -> Figure:
    """Draw Engineering Reality, 3: beta of every domain, and the errors of one law for all domains.

    Raises:
      UserError: the table has no domain.
    """
    table = inputs.table
    names = [name for name in dict.fromkeys(table["domain"]) if name not in (ONE_LAW, BY_DOMAIN)]
    if not names:
        raise UserError("The table has no row of a domain; moejax fit --recipe domains --out writes such a table.")
    lines, misses = [], []
    for name, colour in coloured(names):
        own = table[table["domain"] == name].sort_values("tokens")
        left = column(own, "data_term")
        measured = column(own, "measured") - column(own, "predicted") + left
        seen = np.isfinite(measured) & (measured > 0)
        tokens = column(own, "tokens")
        lines.append(Series(label=name, x=tokens[seen], y=measured[seen], mark="points", colour=colour))
        lines.append(Series(label=name, x=tokens, y=left, colour=colour, in_legend=False))
    for name, colour, mark in ((ONE_LAW, ORANGE, "points"), (BY_DOMAIN, INK, "open")):
        own = table[table["domain"] == name]
        gap = column(own, "predicted") - column(own, "measured")
        misses.append(Series(label=name, x=column(own, "tokens"), y=gap, mark=mark, colour=colour))
    panels = [
        Panel(x=TOKENS, y=DATA_TERM, series=lines, title="by domain"),
        Panel(x=TOKENS, y=MISS, series=misses, title="of the aggregate", level=0.0),
    ]
    return figure(
        "A law per domain",
        "Left: what is left of the loss without the terms that tokens do not lower; the slope is a domain's β. Right: "
        "how far one law of the aggregate, and the domains' laws together, are from the aggregate." + inputs.whose,
        panels,
        columns=2,
        height=3.0,
    )
