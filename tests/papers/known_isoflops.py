"""Isoflop runs of the published law of Abnar et al., with noise."""

import dataclasses

import numpy as np

from moejax.fit.runs import runs_from
from moejax.fit.selection.metrics import predict
from moejax.float64 import float64
from moejax.laws.active_params import BackboneByActive
from moejax.laws.design import Design
from moejax.laws.mixtures.sparsity import ABNAR_2025, best_params_total

SPARSITIES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
BUDGETS = (3e19, 6e19, 1e20, 3e20, 1e21)
"""What Abnar et al. trained: Table 1 and Figure 8."""
CONVENTION = BackboneByActive(ratio=0.5)
"""N_a(N, S) is not given; every convention serves to make a table."""


def abnar_runs(noise=0.0, seed=0, *, sparsities=SPARSITIES, budgets=BUDGETS, sizes=8, span=4.0):
    """Losses of the published Eq. 6, with noise, at sizes around the best one of every sparsity and budget."""
    rows = []
    with float64():
        for flops in budgets:
            for sparsity in sparsities:
                best = float(best_params_total(ABNAR_2025, flops, sparsity, CONVENTION))
                for total in best * np.geomspace(1 / span, span, sizes):
                    active = float(CONVENTION(total, sparsity))
                    rows.append((total, active, flops / (6 * active), flops, 1 / (1 - sparsity)))
    total, active, tokens, flops, experts = np.array(rows).T
    design = Design(
        params_total=total,
        params_active=active,
        tokens=tokens,
        flops=flops,
        num_experts=experts,
        top_k=np.ones(len(rows)),
    )
    runs = runs_from(design, np.ones(len(rows)))
    exact = predict(ABNAR_2025, runs)
    return dataclasses.replace(runs, loss=exact * np.exp(noise * np.random.default_rng(seed).normal(size=len(exact))))
