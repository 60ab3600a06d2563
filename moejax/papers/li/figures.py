"""Draw the accounting of the ICLR 2026 explainer: R_c, the token multiplier and shape ratios, by counts alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moejax.laws.budget.resources import active_ratio
from moejax.papers.documents import LI
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.panels import LOSS, Axis, Panel, Series, curves_of, figure
from moejax.report.figures.style import INK, RED, coloured
from moejax.result import size
from moejax.run_table import DataFrame

RATE = Axis("activation_rate", "activation rate r_a = N_a/N", "log")
COMPUTE = Axis("compute_ratio", "R_c = M_MoE/M_dense", "log")
MULTIPLIER = Axis("token_multiplier", "tokens over the dense model's", "log")
ASPECT = Axis("width_over_layers", "aspect ζ = D_m/L", "log")
TOTAL_RATIO = Axis("total_ratio", "μ: width of all experts / D_m", "log")
ACTIVE_RATIO = Axis("active_ratio", "β: active expert width / D_m")
RATES = np.geomspace(0.06, 1.0, 41)
LAYERS = {2e9: (1408, 16), 7e9: (2048, 24), 14e9: (2560, 28), 70e9: (4096, 48)}
"""Width and layers of a mixture of each size, with an aspect ratio between 85 and 91."""
SIZES = tuple(LAYERS)
DEPTHS = (16, 20, 24, 32)
RATE_COLUMNS = ("params_total", "params_active", "params_embedding", "num_experts", "tokens", "flops", "loss")
"""Columns of a run table for points by activation rate."""
SHAPE_COLUMNS = ("model_dim", "num_layers", "num_experts", "num_shared_experts", "expert_hidden", "tokens", "loss")
"""Columns of a run table for points by shape."""


@LI.experiment(
    "1a", where="Figure 1a and Eqs. 18 to 26", columns=RATE_COLUMNS, shows="compute and loss by activation rate"
)
def compute(inputs: FigureInputs) -> Figure:
    """Draw Figure 1a: R_c and the token multiplier against the activation rate (Eqs. 18 to 26); with runs, also the
    loss.
    """
    ratios, tokens = [], []
    for total, colour in coloured(SIZES):
        width, layers = LAYERS[total]
        at = {"params_total": total, "params_active": RATES * total, "model_dim": width, "num_layers": layers}
        label = f"N = {size(total, 3)}, {layers} layers of {width}"
        for axis, series in ((COMPUTE, ratios), (MULTIPLIER, tokens)):
            series.append(Series(label=label, x=RATES, y=evaluate(inputs.law, axis.column, **at), colour=colour))
    limit = "no attention scores: R_c = r_a"
    ratios.append(Series(label=limit, x=RATES, y=RATES, mark="dashed", colour=INK))
    tokens.append(Series(label=limit, x=RATES, y=1 / RATES, mark="dashed", colour=INK))
    # Linear axes for R_c against r_a, because the figure shows that it is a straight line.
    linear = [replace(axis, scale="linear") for axis in (RATE, COMPUTE)]
    panels = [Panel(x=linear[0], y=linear[1], series=ratios), Panel(x=RATE, y=MULTIPLIER, series=tokens)]
    said = ""
    if inputs.has(*RATE_COLUMNS):
        said = _add_rates(panels, ratios, tokens, _longest(inputs.table))
    return figure(
        "What a mixture of equal size costs, and the tokens it must see",
        "Compute per token over the dense model of the same total parameters, and its inverse, the tokens at equal "
        "training compute, at a context of 16,384. R_c is a straight line of r_a that does not start at 0: attention "
        "scores do not fall with r_a and keep it above r_a where few experts are active. At r_a = 1 it is below 1: the "
        f"mixture is narrower than the dense model, in fewer layers, and its scores cost less.{said}",
        panels,
        columns=2,
        height=2.9,
    )


def _add_rates(panels: list[Panel], ratios: list[Series], tokens: list[Series], runs: DataFrame) -> str:
    """Add the runs of a table to the panels, with a panel of their losses; return a sentence for the caption."""
    mixtures, dense = runs[runs["num_experts"] > 0], runs[runs["num_experts"] == 0]
    rates = {name: column(mixtures, name) - column(mixtures, "params_embedding") for name in RATE_COLUMNS[:2]}
    rate = rates["params_active"] / rates["params_total"]
    losses = [Series(label="runs", x=rate, y=column(mixtures, "loss"), mark="points", colour=RED)]
    # With several dense models, the table does not tell which one is the baseline of a mixture.
    if len(dense) == 1:
        per_token = column(mixtures, "flops") / column(mixtures, "tokens")
        ratio = per_token / float((dense["flops"] / dense["tokens"]).iloc[0])
        ratios.append(Series(label="runs", x=rate, y=ratio, mark="points", colour=RED))
        multiple = column(mixtures, "tokens") / float(dense["tokens"].iloc[0])
        tokens.append(Series(label="runs", x=rate, y=multiple, mark="points", colour=RED))
        losses.append(Series(label="dense", x=[1.0], y=column(dense, "loss"), mark="squares", colour=INK))
    panels.append(Panel(x=RATE, y=LOSS, series=losses))
    return " Points are the table's longest run of each model, vocabulary left out of r_a; FLOPs are all of them."


def _longest(runs: DataFrame) -> DataFrame:
    """Return the run with the most tokens of each model, or the whole table if it has no models."""
    return runs.sort_values("tokens").groupby("model").tail(1) if "model" in runs else runs


def _losses_by_shape(runs: DataFrame) -> list[Panel]:
    """Return the loss against zeta, a curve for each mu, and against mu, a curve for each zeta."""
    runs = _longest(runs[runs["num_experts"] > 0])
    experts = column(runs, "num_experts") + column(runs, "num_shared_experts")
    runs = runs.assign(
        **{
            ASPECT.column: np.round(column(runs, "model_dim") / column(runs, "num_layers"), 1),
            TOTAL_RATIO.column: np.round(experts * column(runs, "expert_hidden") / column(runs, "model_dim"), 1),
        }
    )
    panels = []
    for along, across, letter in ((ASPECT, TOTAL_RATIO, "μ"), (TOTAL_RATIO, ASPECT, "ζ")):
        # Keep the best of several runs of equal shape.
        series = curves_of(runs, across.column, along.column, "loss", lambda v, name=letter: f"{name} = {short(v)}")
        panels.append(Panel(x=along, y=LOSS, series=series))
    return panels


@LI.experiment("7", where="Figure 7 and Eq. 27", columns=SHAPE_COLUMNS, shows="shape ratios, and loss by them")
def shapes(inputs: FigureInputs) -> Figure:
    """Draw Figure 7's variables: μ by aspect and size, and β by μ and r_a; with runs, also their losses."""
    aspect = np.geomspace(30, 250, 41)
    by_aspect, by_rate = [], []
    for layers, colour in coloured(DEPTHS):
        at = {"params_total": 7e9, "params_active": 1.4e9, "model_dim": aspect * layers, "num_layers": layers}
        values = evaluate(inputs.law, TOTAL_RATIO.column, **at)
        keep = values > 1
        by_aspect.append(Series(label=f"{layers} layers", x=aspect[keep], y=values[keep], colour=colour))
    for mu, mark in ((10.0, "dotted"), (22.0, "line"), (44.0, "dashed")):
        values = active_ratio(RATES, mu)
        keep = values > 0
        by_rate.append(Series(label=f"μ = {mu:g}", x=RATES[keep], y=values[keep], mark=mark, colour=INK))
    panels = [
        Panel(x=ASPECT, y=TOTAL_RATIO, series=by_aspect, level=20.0),
        Panel(x=RATE, y=ACTIVE_RATIO, series=by_rate),
    ]
    said = "The explainer's losses are not public."
    if inputs.has(*SHAPE_COLUMNS):
        panels += _losses_by_shape(inputs.table)
        said = "Below: the losses of the table's runs, of each model the longest."
    return figure(
        "Shape ratios",
        "Left: the μ of a 7B mixture, by aspect and depth; the explainer holds ζ of 60 to 120 and "
        "μ near 20 (grey) to be reasonable. Right: β by Eq. 27; 0 where attention alone is r_a of the model. "
        f"{said}",
        panels,
        columns=2,
        height=2.9,
    )
