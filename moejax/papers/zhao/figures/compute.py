"""Draw Zhao et al. (2025), Figure 16: the lowest loss for a budget, exact, by the printed Eq. 33, and in its limit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moejax.float64 import float64
from moejax.laws.design import Design
from moejax.laws.mixtures.five_factor import (
    loss_at_optimum,
    loss_compute_limit,
    optimal_active_at_compute,
    with_experts,
)
from moejax.papers.documents import ZHAO
from moejax.papers.zhao.records import EQUATION_33
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, figure
from moejax.report.figures.style import BLUE, INK, ORANGE

TOTAL, EXPERTS, SHARED = 1e12, 7.0, 0.31
BUDGETS = np.geomspace(1e20, 1e27, 15)


@ZHAO.experiment("16", shows="least loss by compute")
def best_loss(inputs: FigureInputs) -> Figure:
    """Draw L*(C) at N = 1T, G = 7, S = 0.31; C is N_a·D, as in the paper."""
    law = inputs.law
    with float64():
        structure = law.structure(with_experts(EXPERTS, SHARED))
        limit = loss_compute_limit(law, TOTAL, structure)
        exact = np.array(
            [
                float(
                    loss_at_optimum(
                        law,
                        optimal_active_at_compute(law, budget, TOTAL, EXPERTS, SHARED).value["params_active"],
                        TOTAL,
                        structure,
                    )
                )
                for budget in BUDGETS
            ]
        )
        without_h, printed = (
            np.asarray(jax.vmap(lambda c, curve=curve: curve(Design(flops=c)))(jnp.asarray(BUDGETS)))
            for curve in (limit, EQUATION_33)
        )
    compute = Axis("active_params_times_tokens", "C = N_a·D, no factor 6", FLOPS.scale)
    panels = [
        Panel(
            x=compute,
            y=LOSS,
            series=[
                Series(label="L*(C), Eqs. 31 and 32", x=BUDGETS, y=exact, colour=BLUE),
                Series(label="its limit for h → 0", x=BUDGETS, y=without_h, mark="dotted", colour=INK),
                Series(label="Eq. 33, 1.87 + 576·C^-0.158", x=BUDGETS, y=printed, mark="dashed", colour=ORANGE),
            ],
        ),
        Panel(
            x=compute,
            y=Axis("gap_nats_per_token", "too low by, nats/token"),
            series=[
                Series(
                    label="gap of the limit", x=BUDGETS, y=exact - without_h, mark="dotted", colour=INK, in_legend=False
                ),
                Series(
                    label="gap of Eq. 33", x=BUDGETS, y=exact - printed, mark="joined", colour=ORANGE, in_legend=False
                ),
            ],
        ),
    ]
    return figure(
        "Least loss for a budget",
        f"N = 1T, G = 7, S = 0.31, by {inputs.name}. Eq. 33 is the limit in which a large active share costs nothing, "
        "its numbers rounded; the law's own minimum lies above both, the more the larger the budget.",
        panels,
        columns=2,
        height=2.8,
    )
