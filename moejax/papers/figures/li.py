"""The ICLR 2026 explainer's accounting: R_c, the token multiplier and shape ratios, by counting alone."""

from __future__ import annotations

import numpy as np

from moejax.laws.resources import active_ratio
from moejax.report.figures.figure import Figure
from moejax.report.figures.inputs import FigureInputs, evaluate
from moejax.report.figures.panels import Axis, Panel, Series, draw
from moejax.report.figures.style import INK, ramp
from moejax.result import size

RATE = Axis("activation_rate", "activation rate r_a = N_a/N", "log")
COMPUTE = Axis("compute_ratio", "R_c = M_MoE/M_dense", "log")
MULTIPLIER = Axis("token_multiplier", "tokens over the dense model's", "log")
ASPECT = Axis("width_over_layers", "aspect ζ = D_m/L", "log")
TOTAL_RATIO = Axis("total_ratio", "μ: width of all experts / D_m", "log")
ACTIVE_RATIO = Axis("active_ratio", "β: active expert width / D_m")
RATES = np.geomspace(0.06, 1.0, 41)
SIZES = (2e9, 7e9, 14e9, 70e9)
LAYERS = {2e9: (1408, 16), 7e9: (2048, 24), 14e9: (2560, 28), 70e9: (4096, 48)}
"""Width and layers of a mixture of each size, of an aspect between 85 and 91."""
DEPTHS = (16, 20, 24, 32)


def compute(inputs: FigureInputs) -> Figure:
    """R_c and the token multiplier against the activation rate (Eqs. 18 to 26)."""
    ratios, tokens = [], []
    for total, colour in zip(SIZES, ramp(len(SIZES)), strict=True):
        width, layers = LAYERS[total]
        at = {"params_total": total, "params_active": RATES * total, "model_dim": width, "num_layers": layers}
        label = f"N = {size(total, 3)}, {layers} layers of {width}"
        ratios.append(Series(label=label, x=RATES, y=evaluate(inputs.law, COMPUTE.column, **at), colour=colour))
        tokens.append(Series(label=label, x=RATES, y=evaluate(inputs.law, MULTIPLIER.column, **at), colour=colour))
    limit = "no attention scores: R_c = r_a"
    ratios.append(Series(label=limit, x=RATES, y=RATES, mark="dashed", colour=INK))
    tokens.append(Series(label=limit, x=RATES, y=1 / RATES, mark="dashed", colour=INK))
    panels = [Panel(x=RATE, y=COMPUTE, series=ratios), Panel(x=RATE, y=MULTIPLIER, series=tokens)]
    drawing, rows = draw(panels, columns=2, height=2.9)
    return Figure(
        "What a mixture of equal size costs, and the tokens it must see",
        "Compute per token over the dense model of the same total parameters, and its inverse, the tokens at equal "
        "training compute, at a context of 16,384. Attention scores keep the ratio above r_a.",
        drawing,
        rows,
    )


def shapes(inputs: FigureInputs) -> Figure:
    """Figure 7's variables: what aspect and size make of μ, and what μ and r_a make of β."""
    aspect = np.geomspace(30, 250, 41)
    by_aspect, by_rate = [], []
    for layers, colour in zip(DEPTHS, ramp(len(DEPTHS)), strict=True):
        at = {"params_total": 7e9, "params_active": 1.4e9, "model_dim": aspect * layers, "num_layers": layers}
        found = evaluate(inputs.law, TOTAL_RATIO.column, **at)
        keep = found > 1
        by_aspect.append(Series(label=f"{layers} layers", x=aspect[keep], y=found[keep], colour=colour))
    for mu, mark in ((10.0, "dotted"), (22.0, "line"), (44.0, "dashed")):
        found = active_ratio(RATES, mu)
        keep = found > 0
        by_rate.append(Series(label=f"μ = {mu:g}", x=RATES[keep], y=found[keep], mark=mark, colour=INK))
    panels = [
        Panel(x=ASPECT, y=TOTAL_RATIO, series=by_aspect, level=20.0),
        Panel(x=RATE, y=ACTIVE_RATIO, series=by_rate),
    ]
    drawing, rows = draw(panels, columns=2, height=2.9)
    return Figure(
        "Shape ratios",
        "Left: the μ of a 7B mixture, by aspect and depth; the explainer holds ζ of 60 to 120 and "
        "μ near 20 (grey) to be reasonable. Right: β by Eq. 27; 0 where attention alone is r_a of the model. "
        "The explainer's losses (its Figure 7) are not public.",
        drawing,
        rows,
    )
