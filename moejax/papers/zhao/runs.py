"""Generate synthetic run tables for Zhao et al. (2025), whose losses are not public: losses by its law, with noise."""

from __future__ import annotations

import numpy as np
import pandas as pd

from moejax.laws.mixtures.five_factor import ZHAO_2025
from moejax.papers.zhao.shapes import shape, widths
from moejax.papers.zhao.table_6 import Run, table_6
from moejax.report.figures.figure import evaluate, structured
from moejax.report.synthetic import rng


def zhao_runs(noise: float = 0.001) -> pd.DataFrame:
    """Return a run table with the settings of Zhao's Table 6 and losses by its law plus noise, in nats per token.

    ``is_validation`` marks the rows that the paper holds out, ``is_fitted`` the rows that it fits. The number and width
    of the routed experts, which Table 6 does not print, are inferred from the sizes.
    """
    runs = table_6()
    known = _known(runs)
    loss = evaluate(ZHAO_2025, **known) + rng().normal(0.0, noise, len(runs))
    marks = {
        "is_validation": [int(run.validation) for run in runs],
        "is_fitted": [int(run.index < 268) for run in runs],
    }
    return pd.DataFrame({**known, **_shapes(runs, known["num_shared_experts"]), "loss": loss, **marks})


def _shapes(runs: list[Run], num_shared: np.ndarray) -> dict[str, list[float]]:
    """Return model width, expert width and number of routed experts, keyed by field.

    G experts together have the active width.
    """
    columns: dict[str, list[float]] = {"model_dim": [], "expert_hidden": [], "num_experts": []}
    for run, shared in zip(runs, num_shared, strict=True):
        name, everything, serving = widths(round(run.total / 1e6), round(run.active / 1e6))
        _, _, hidden, expert = shape(name)
        columns["model_dim"].append(hidden)
        columns["expert_hidden"].append(expert * serving / run.experts)
        columns["num_experts"].append(round(everything * run.experts / serving - float(shared), 9))
    return columns


def _known(runs: list[Run]) -> dict[str, np.ndarray]:
    """Return the design fields of Table 6's settings, keyed by field, with its printed S = 0.33 as 1/3."""
    fields = {name: np.array([getattr(run, name) for run in runs]) for name in ("active", "total", "tokens")}
    experts = np.array([run.experts for run in runs])
    shared = np.array([1 / 3 if run.shared == 0.33 else run.shared for run in runs])
    sizes = {"params_active": fields["active"], "params_total": fields["total"], "tokens": fields["tokens"]}
    known = structured(experts, shared, **sizes)
    # Round, so that 10 - 10·0.2 is exactly 8 experts.
    return {name: np.round(values, 9) for name, values in known.items()}
