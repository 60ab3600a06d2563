"""Draw the ICLR 2026 explainer's accounting: R_c, the token multiplier and shape ratios, computed only from counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moejax.laws.budget.resources import active_ratio
from moejax.papers.documents import LI
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate
from moejax.report.figures.panels import LOSS, Axis, Panel, Series, curves_of, figure
from moejax.report.figures.style import INK, RED, colored
from moejax.result import size
from moejax.run_table import DataFrame

RATE = Axis("activation_rate", "activation rate r_a = N_a/N", "log")
COMPUTE = Axis("compute_ratio", "R_c = M_MoE/M_dense", "log")
MULTIPLIER = Axis("token_multiplier", "tokens / tokens of the dense model", "log")
ASPECT = Axis("width_over_layers", "aspect ζ = D_m/L", "log")
TOTAL_RATIO = Axis("total_ratio", "μ: width of all experts / D_m", "log")
ACTIVE_RATIO = Axis("active_ratio", "β: active expert width / D_m")
RATES = np.geomspace(0.06, 1.0, 41)
LAYERS = {2e9: (1408, 16), 7e9: (2048, 24), 14e9: (2560, 28), 70e9: (4096, 48)}
"""Width and layers of an MoE model of each size, with an aspect ratio between 85 and 91."""
SIZES = tuple(LAYERS)
DEPTHS = (16, 20, 24, 32)
RATE_COLUMNS = ("params_total", "params_active", "params_embedding", "num_experts", "tokens", "flops", "loss")
"""Columns that a run table needs for points by activation rate."""
SHAPE_COLUMNS = ("model_dim", "num_layers", "num_experts", "num_shared_experts", "expert_hidden", "tokens", "loss")
"""Columns that a run table needs for points by shape."""


@LI.experiment(
    "1a", where="Figure 1a and Eqs. 18 to 26", columns=RATE_COLUMNS, shows="compute and loss by activation rate"
)
def compute(inputs: FigureInputs) -> Figure:
    """Draw Figure 1a: R_c and the token multiplier against the activation rate (Eqs. 18 to 26). With runs, also draw
    the loss.
    """
    ratios, tokens = [], []
    for total, color in colored(SIZES):
        width, layers = LAYERS[total]
        at = {"params_total": total, "params_active": RATES * total, "model_dim": width, "num_layers": layers}
        label = f"N = {size(total, 3)}, {layers} layers of {width}"
        for axis, series in ((COMPUTE, ratios), (MULTIPLIER, tokens)):
            series.append(Series(label=label, x=RATES, y=evaluate(inputs.law, axis.column, **at), color=color))
    limit = "no attention scores: R_c = r_a"
    ratios.append(Series(label=limit, x=RATES, y=RATES, mark="dashed", color=INK))
    tokens.append(Series(label=limit, x=RATES, y=1 / RATES, mark="dashed", color=INK))
    # Linear axes, because the figure shows that R_c is a straight line in r_a.
    linear = [replace(axis, scale="linear") for axis in (RATE, COMPUTE)]
    panels = [Panel(x=linear[0], y=linear[1], series=ratios), Panel(x=RATE, y=MULTIPLIER, series=tokens)]
    said = ""
    if inputs.has(*RATE_COLUMNS):
        said = _add_rates(panels, ratios, tokens, _longest(inputs.table))
    return figure(
        "Cost of an MoE model of equal size, and its tokens at equal compute",
        "Compute per token relative to a dense model with the same total parameters, and its inverse, the tokens at "
        "equal training compute, at a context of 16,384. R_c is a straight line in r_a that does not start at 0: "
        "attention scores do not fall with r_a, so R_c exceeds r_a if few experts are active. At r_a = 1, R_c is "
        f"below 1: the MoE model is narrower and has fewer layers, so its scores cost less.{said}",
        panels,
        columns=2,
        height=2.9,
    )


def _add_rates(panels: list[Panel], ratios: list[Series], tokens: list[Series], runs: DataFrame) -> str:
    """Add the runs of a table to the panels, add a panel of their losses, and return a sentence for the caption."""
    mixtures, dense = runs[runs["num_experts"] > 0], runs[runs["num_experts"] == 0]
    rates = {name: column(mixtures, name) - column(mixtures, "params_embedding") for name in RATE_COLUMNS[:2]}
    rate = rates["params_active"] / rates["params_total"]
    losses = [Series(label="runs", x=rate, y=column(mixtures, "loss"), mark="points", color=RED)]
    # With several dense models, the baseline of an MoE model is ambiguous.
    if len(dense) == 1:
        per_token = column(mixtures, "flops") / column(mixtures, "tokens")
        ratio = per_token / float((dense["flops"] / dense["tokens"]).iloc[0])
        ratios.append(Series(label="runs", x=rate, y=ratio, mark="points", color=RED))
        multiple = column(mixtures, "tokens") / float(dense["tokens"].iloc[0])
        tokens.append(Series(label="runs", x=rate, y=multiple, mark="points", color=RED))
        losses.append(Series(label="dense", x=[1.0], y=column(dense, "loss"), mark="squares", color=INK))
    panels.append(Panel(x=RATE, y=LOSS, series=losses))
    return " Points are each model's longest run in the table; r_a excludes the vocabulary, FLOPs include it."


def _longest(runs: DataFrame) -> DataFrame:
    """Return the run with the most tokens of each model, or the whole table if it has no models."""
    return runs.sort_values("tokens").groupby("model").tail(1) if "model" in runs else runs


def _losses_by_shape(runs: DataFrame) -> list[Panel]:
    """Return two panels: loss against zeta with a curve per mu, and loss against mu with a curve per zeta."""
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
    """Draw Figure 7's variables: μ against aspect, and β against r_a. With runs, also draw their losses."""
    aspect = np.geomspace(30, 250, 41)
    by_aspect, by_rate = [], []
    for layers, color in colored(DEPTHS):
        at = {"params_total": 7e9, "params_active": 1.4e9, "model_dim": aspect * layers, "num_layers": layers}
        values = evaluate(inputs.law, TOTAL_RATIO.column, **at)
        keep = values > 1
        by_aspect.append(Series(label=f"{layers} layers", x=aspect[keep], y=values[keep], color=color))
    for mu, mark in ((10.0, "dotted"), (22.0, "line"), (44.0, "dashed")):
        values = active_ratio(RATES, mu)
        keep = values > 0
        by_rate.append(Series(label=f"μ = {mu:g}", x=RATES[keep], y=values[keep], mark=mark, color=INK))
    panels = [
        Panel(x=ASPECT, y=TOTAL_RATIO, series=by_aspect, level=20.0),
        Panel(x=RATE, y=ACTIVE_RATIO, series=by_rate),
    ]
    said = "The explainer's losses are not public."
    if inputs.has(*SHAPE_COLUMNS):
        panels += _losses_by_shape(inputs.table)
        said = "Below: the loss of each model's longest run in the table."
    return figure(
        "Shape ratios",
        "Left: μ of a 7B MoE model by aspect and depth; the explainer recommends ζ from 60 to 120 and μ near 20 "
        "(grey). Right: β by Eq. 27; at β = 0, attention makes up all active parameters. "
        f"{said}",
        panels,
        columns=2,
        height=2.9,
    )
