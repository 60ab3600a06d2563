"""Zhao et al. (2025), Figure 16: the least loss for a budget, exact and as Eq. 33 prints it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from moejax.float64 import float64
from moejax.laws.design import Design
from moejax.laws.five_factor import loss_at_optimum, loss_compute_limit, optimal_active_at_compute, with_experts
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, draw
from moejax.report.figures.style import BLUE, ORANGE

TOTAL, EXPERTS, SHARED = 1e12, 7.0, 0.31
BUDGETS = np.geomspace(1e20, 1e27, 15)


def best_loss(inputs: FigureInputs) -> Figure:
    """L*(C) at N = 1T, G = 7, S = 0.31; C counts N_a·D, as the paper does."""
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
        printed = np.asarray(jax.vmap(lambda c: limit(Design(flops=c)))(jnp.asarray(BUDGETS)))
    compute = Axis("active_params_times_tokens", "C = N_a·D, no factor 6", FLOPS.scale)
    panels = [
        Panel(
            x=compute,
            y=LOSS,
            series=[
                Series(label="L*(C), Eqs. 31 and 32", x=BUDGETS, y=exact, colour=BLUE),
                Series(label="Eq. 33, its limit for h → 0", x=BUDGETS, y=printed, mark="dashed", colour=ORANGE),
            ],
        ),
        Panel(
            x=compute,
            y=Axis("gap_nats_per_token", "Eq. 33 is too low by, nats/token", "log"),
            series=[Series(label="gap", x=BUDGETS, y=exact - printed, mark="joined", colour=ORANGE, in_legend=False)],
        ),
    ]
    drawing, rows = draw(panels, columns=2, height=2.8)
    return Figure(
        "Least loss for a budget",
        f"N = 1T, G = 7, S = 0.31, by {inputs.name}. Eq. 33 is the limit in which a large active share costs nothing; "
        "the law's own minimum lies above it, the more the larger the budget.",
        drawing,
        rows,
    )
