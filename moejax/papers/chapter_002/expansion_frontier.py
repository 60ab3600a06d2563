"""Compute the frontier of chapter 002: the runs that no run with as little compute beats, and the law's prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moejax.fit.runs import Runs, runs_from
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection.holdout import Split
from moejax.fit.selection.metrics import predict
from moejax.laws.dense.chinchilla import training_flops
from moejax.laws.design import Design
from moejax.laws.mixtures.effective_params import EffectiveParams

if TYPE_CHECKING:
    import pandas as pd

INPUTS = EffectiveParams.inputs
CELLS = 41, 31
"""Grid points along active parameters and along G."""
COLUMNS = ("part", "params_active", "expansion", "flops", "loss")


def frontier_table(runs: Runs, held_out: Split | None = None, law: EffectiveParams | None = None) -> pd.DataFrame:
    """Return every run with its compute 6·N_act·D (``part`` is ``run``), and the law's losses on a grid (``part`` is
    ``law``).

    The grid covers the runs' range of active parameters and G, at the largest run's compute.

    Args:
      law: the law; fitted to the runs that are not held out by default.

    Raises:
      UserError: the law cannot be fitted to these runs.
    """
    import pandas as pd

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
        pd.DataFrame({"part": part, **dict(zip(COLUMNS[1:], values, strict=True))})
        for part, values in (("run", trained), ("law", by_law))
    ]
    return pd.concat(parts, ignore_index=True)


def _flops(active: Any, tokens: Any) -> np.ndarray:
    return np.asarray(training_flops({"params_active": active, "tokens": tokens})["flops"], np.float64)
