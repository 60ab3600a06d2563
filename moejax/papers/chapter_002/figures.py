"""Draw chapter 002: its widget, Listing 2's grid, the frontier of runs, and laws per domain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from moejax.errors import UserError
from moejax.fit.runs import Runs, budgets, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection.holdout import Split
from moejax.fit.selection.metrics import predict
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN, HOFFMANN_2022, training_flops
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import CHAPTER_002 as LAW
from moejax.laws.mixtures.effective_params import EffectiveParams, compute_optimal
from moejax.papers.chapter_002.domains import BY_DOMAIN, ONE_LAW
from moejax.papers.chapter_002.records import BUDGET, CONFIGURATIONS, GRID_EXPANSION
from moejax.papers.documents import CHAPTER_002
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.groups import DENSE, MEANING
from moejax.report.figures.panels import ACTIVE, EXPANSION, FLOPS, LOSS, TOKENS, Axis, Field, Panel, Series, figure
from moejax.report.figures.runs import by_expansion
from moejax.report.figures.style import BLUE, INK, MUTED, ORANGE, colored
from moejax.report.findings import budget_frontier
from moejax.report.plots import FromRuns
from moejax.report.synthetic import NOISE, rng
from moejax.report.synthetic import runs as synthetic_runs

ACTIVES = np.geomspace(2e9, 4e11, 61)
EXPANSIONS = np.geomspace(1.0, 32.0, 41)
BUDGETS = np.geomspace(1e21, 1e26, 31)
SLIDER = np.geomspace(1e20, 1e26, 61)
"""Budgets of the widget's slider."""


@CHAPTER_002.experiment("widget", where="the widget and its presets", law="effective_params", shows="loss by compute")
def widget(inputs: FigureInputs) -> Figure:
    """Draw the widget's three presets: L against C at one N_act and G, with the dense curve at the same N_act."""
    panels = []
    for name, (active, expansion, *_) in CONFIGURATIONS.items():
        sizes = {"params_active": active, "tokens": SLIDER / (FLOPS_PER_PARAM_AND_TOKEN * active)}
        mixture, dense = (evaluate(inputs.law, params_total=active * g, **sizes) for g in (expansion, 1.0))
        here = float(np.exp(np.interp(np.log(BUDGET), np.log(SLIDER), np.log(mixture))))
        series = [
            Series(label="dense, G = 1, equal active parameters", x=SLIDER, y=dense, color=MUTED),
            Series(label="MoE model", x=SLIDER, y=mixture, color=BLUE),
            Series(label="C = 3.4e24", x=[BUDGET], y=[here], mark="stars", color=ORANGE),
        ]
        panels.append(Panel(x=FLOPS, y=LOSS, series=series, title=name, note=f"G = {expansion:g}"))
    return figure(
        "The widget's presets",
        f"By {inputs.name}: all compute goes into tokens, D = C/(6·N_act). At G = 1 the two curves coincide. At larger "
        "G, the MoE curve is lower at every compute. This includes Switch, although the chapter claims otherwise.",
        panels,
        columns=3,
        height=2.7,
        sharey=True,
    )


@CHAPTER_002.experiment("grid", where="Listing 2", law="effective_params", shows="loss of a grid of models")
def grid(inputs: FigureInputs) -> Figure:
    """Draw Listing 2's grid as a heat map, and L*(C) at each expansion."""
    law = inputs.law
    active, expansion = ACTIVES[None, :], EXPANSIONS[:, None]
    tokens = BUDGET / (FLOPS_PER_PARAM_AND_TOKEN * active)
    losses = evaluate(law, params_active=active, params_total=active * expansion, tokens=tokens)
    best = [float(compute_optimal(law, BUDGET, g).value["params_active"]) for g in EXPANSIONS]
    marks = [Series(label="best active size", x=best, y=EXPANSIONS, color=ORANGE)]
    for (name, (own, ratio, *_)), mark in zip(CONFIGURATIONS.items(), ("squares", "stars", "points"), strict=True):
        marks.append(Series(label=name, x=[own], y=[ratio], mark=mark, color=INK))
    floor = float(np.nanmin(losses))
    field = Field(
        x=ACTIVE,
        y=EXPANSION,
        z=LOSS,
        xs=ACTIVES,
        ys=EXPANSIONS,
        zs=losses,
        title="C = 3.4e24",
        marks=marks,
        contours=floor + np.array([0.002, 0.005, 0.01, 0.02, 0.04, 0.08]),
    )
    chosen = [g for g in GRID_EXPANSION if g in (1.0, 4.0, 16.0, 32.0)]
    dense = _best_losses(inputs, 1.0)
    series = [
        Series(label=f"G = {g:g}", x=BUDGETS, y=dense - _best_losses(inputs, g), color=color)
        for g, color in colored(chosen)
        if g > 1
    ]
    gain = Axis("gain_over_dense_nats_per_token", "gain over dense, nats/token", "log")
    panels = [field, Panel(x=FLOPS, y=gain, series=series, title="compute-optimal")]
    return figure(
        "The frontier of one budget",
        f"By {inputs.name}. Left: loss at equal compute; the lower edge is dense. Right: gain from expansion "
        "at each budget's optimum. It is always positive and shrinks with compute: the law has no crossover.",
        panels,
        columns=2,
        height=3.3,
    )


def _best_losses(inputs: FigureInputs, expansion: float) -> np.ndarray:
    active = np.array([float(compute_optimal(inputs.law, c, expansion).value["params_active"]) for c in BUDGETS])
    tokens = BUDGETS / (FLOPS_PER_PARAM_AND_TOKEN * active)
    return evaluate(inputs.law, params_active=active, params_total=active * expansion, tokens=tokens)


INPUTS = EffectiveParams.inputs
CELLS = 41, 31
"""Grid points along active parameters and along G."""
PARTS = ("part", "params_active", "expansion", "flops", "loss")


def frontier_table(runs: Runs, held_out: Split | None = None, law: EffectiveParams | None = None) -> pd.DataFrame:
    """Return a table of runs with compute 6·N_act·D (``part`` is ``run``) and of the law's losses on a grid (``law``).

    The grid covers the runs' range of active parameters and G, at the largest run's compute.

    Args:
      law: a fitted law; by default it is fitted to the runs that are not held out.

    Raises:
      UserError: the law cannot be fitted to these runs.
    """
    if law is None:
        law = fit_law(EffectiveParams, runs if held_out is None else runs.only(~held_out.held_out)).law
    assert law is not None
    runs = runs.where(runs.weight > 0)
    active = np.asarray(runs.design.params_active, np.float64)
    expansion = np.asarray(runs.design.params_total, np.float64) / active
    flops = _flops(active, runs.design.tokens)
    budget = float(flops.max())
    grid = np.meshgrid(
        np.geomspace(active.min(), active.max(), CELLS[0]), np.geomspace(1.0, max(expansion.max(), 2.0), CELLS[1])
    )
    sizes, ratios = (each.ravel() for each in grid)
    design = Design(params_active=sizes, params_total=sizes * ratios, tokens=budget / _flops(sizes, 1.0))
    said = predict(law, runs_from(design, np.ones(len(sizes))))
    trained = (active, expansion, flops, runs.loss)
    by_law = (sizes, ratios, np.full(len(sizes), budget), said)
    parts = [
        pd.DataFrame({"part": part, **dict(zip(PARTS[1:], values, strict=True))})
        for part, values in (("run", trained), ("law", by_law))
    ]
    return pd.concat(parts, ignore_index=True)


def _flops(active: ArrayLike, tokens: ArrayLike) -> np.ndarray:
    return np.asarray(training_flops({"params_active": active, "tokens": tokens})["flops"], np.float64)


def expansions() -> pd.DataFrame:
    """Return synthetic runs of chapter 002's law with noise, and the law's grid at the largest budget."""
    runs = synthetic_runs(120)
    design = Design(**{name: runs[name].to_numpy(float) for name in INPUTS})
    return frontier_table(runs_from(design, runs["loss"].to_numpy(float)), law=LAW)


@CHAPTER_002.experiment(
    "runs",
    where="Listing 2, of runs",
    columns=PARTS,
    from_runs=FromRuns(reads=INPUTS, table=frontier_table),
    example=expansions,
    shows="frontier of a run table",
)
def of_runs(inputs: FigureInputs) -> Figure:
    """Draw the frontier of the runs, and Listing 2's grid by the law fitted to these runs."""
    runs, cells = (inputs.table[inputs.table["part"] == part] for part in ("run", "law"))
    series = by_expansion(runs)
    kinds = (("dense", runs["expansion"] <= DENSE, MUTED), ("MoE", runs["expansion"] > DENSE, INK))
    for label, kept, color in kinds:
        if kept.any():
            best, label = budget_frontier(runs[kept]), f"frontier of {label} runs"
            series.append(Series(label=label, x=column(best, "flops"), y=column(best, "loss"), color=color))
    panels: list[Panel | Field] = [Panel(x=FLOPS, y=LOSS, series=series, title="runs")]
    if len(cells):
        losses = cells.pivot_table(index="expansion", columns="params_active", values="loss")
        sizes, ratios, values = (np.asarray(each, np.float64) for each in (losses.columns, losses.index, losses))
        best = np.unravel_index(int(np.argmin(values)), values.shape)
        number, _ = budgets(column(runs, "flops"))
        own = runs[number == number.max()]
        marks = [
            Series(
                label="runs at C", x=column(own, "params_active"), y=column(own, "expansion"), mark="open", color=INK
            ),
            Series(label="least", x=[sizes[best[1]]], y=[ratios[best[0]]], mark="stars", color=ORANGE),
        ]
        title = f"law fitted to the runs, C = {short(float(cells['flops'].iloc[0]), 2)} FLOPs"
        panels.append(
            Field(x=ACTIVE, y=EXPANSION, z=LOSS, xs=sizes, ys=ratios, zs=values, title=title, marks=marks, contours=6)
        )
    return figure(
        "The frontier of runs",
        "Left: every run at its compute 6·N_act·D; lines join the dense runs, and the MoE runs, with the lowest loss "
        f"of their compute budget. {MEANING} Right: loss by the law fitted to the runs at C, the largest compute, over "
        "the trained range of sizes and expansion; the lower edge is dense. Open markers are the runs with this "
        "compute." + inputs.whose,
        panels,
        columns=2,
        height=3.3,
    )


DATA_TERM = Axis("loss_left_to_tokens_nats_per_token", "loss due to finite tokens", "log")
MISS = Axis("predicted_minus_measured_nats_per_token", "predicted minus measured, nats/token")


def domain_losses() -> pd.DataFrame:
    """Return synthetic losses of two domains with different beta, their aggregate, and predictions by one law and by
    both."""
    shares, betas, random = {"web": 0.7, "math": 0.3}, {"web": 0.22, "math": 0.4}, rng()
    sizes, tokens = (each.ravel() for each in np.meshgrid(np.geomspace(3e7, 1e9, 5), np.geomspace(1e9, 6.4e10, 7)))
    far = tokens > 2e10
    known = {"params_active": sizes, "tokens": tokens}
    parts = {}
    for name, beta in betas.items():
        law = dataclasses.replace(HOFFMANN_2022, tokens_exponent=beta, tokens_scale=0.5 * 1e9**beta)
        predicted = evaluate(law, **known)
        left = predicted - evaluate(law, params_active=sizes, tokens=np.inf)
        parts[name] = (predicted + random.normal(0.0, NOISE, len(sizes)), predicted, left)
    whole, together = (sum(shares[name] * parts[name][i] for name in shares) for i in (0, 1))
    # A single exponent fits the sum of two powers in the fitted range, but not beyond.
    beta = sum(shares[name] * betas[name] for name in shares)
    one = together + sum(shares[name] * (0.5 * (tokens / 1e9) ** -beta - parts[name][2]) for name in shares)
    parts |= {ONE_LAW: (whole, one, np.nan), BY_DOMAIN: (whole, together, np.nan)}
    return pd.concat(
        pd.DataFrame(
            {
                "domain": name,
                "role": np.where(far, "held out", "fitted"),
                "tokens": tokens,
                "measured": measured,
                "predicted": predicted,
                "data_term": left,
            }
        )
        for name, (measured, predicted, left) in parts.items()
    )


@CHAPTER_002.experiment(
    "domains",
    where="Engineering Reality, 3",
    columns=("domain", "role", "tokens", "measured", "predicted", "data_term"),
    example=domain_losses,
    shows="beta of each domain",
)
def domains(inputs: FigureInputs) -> Figure:
    """Draw Engineering Reality, 3: the beta of each domain, and the errors of one law for all domains.

    Raises:
      UserError: the table has no row of a domain.
    """
    table = inputs.table
    names = [name for name in dict.fromkeys(table["domain"]) if name not in (ONE_LAW, BY_DOMAIN)]
    if not names:
        raise UserError("The table has no row for a domain; moejax fit --recipe domains --out writes such a table.")
    lines, misses = [], []
    for name, color in colored(names):
        own = table[table["domain"] == name].sort_values("tokens")
        left = column(own, "data_term")
        measured = column(own, "measured") - column(own, "predicted") + left
        seen = np.isfinite(measured) & (measured > 0)
        tokens = column(own, "tokens")
        lines.append(Series(label=name, x=tokens[seen], y=measured[seen], mark="points", color=color))
        lines.append(Series(label=name, x=tokens, y=left, color=color, in_legend=False))
    for name, color, mark in ((ONE_LAW, ORANGE, "points"), (BY_DOMAIN, INK, "open")):
        own = table[table["domain"] == name]
        gap = column(own, "predicted") - column(own, "measured")
        misses.append(Series(label=name, x=column(own, "tokens"), y=gap, mark=mark, color=color))
    panels = [
        Panel(x=TOKENS, y=DATA_TERM, series=lines, title="by domain"),
        Panel(x=TOKENS, y=MISS, series=misses, title="of the aggregate", level=0.0),
    ]
    return figure(
        "A law per domain",
        "Left: the part of the loss that falls with tokens; the slope is a domain's β. Right: the errors of one law "
        "for the aggregate, and of the aggregated domain laws." + inputs.whose,
        panels,
        columns=2,
        height=3.0,
    )
