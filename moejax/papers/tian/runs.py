"""Generate a synthetic run table for Tian et al. (2025), whose runs are not public: losses by its laws, with noise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from moejax.fit.runs import Runs
from moejax.laws.dense.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import Design
from moejax.laws.predict import published
from moejax.papers.tian.recipe import INPUTS, in_model_scale
from moejax.papers.tian.tables import EXPERTS, GROUPS, TABLE_9
from moejax.report.figures.law_curves import leverage
from moejax.report.plots import FromRuns
from moejax.report.synthetic import rng

LAW = published("leverage").law


def from_runs(table: Callable[[Runs], Any], *reads: str) -> FromRuns:
    """Return the rule that computes a figure's table from a run table, with compute by the paper's convention."""
    return FromRuns(reads=(*INPUTS, *reads), table=lambda runs, *_: table(runs), count=in_model_scale)


def tian_runs(noise: float = 0.0005) -> pd.DataFrame:
    """Return a run table for Tian's Tables 8 and 9 and for sweeps as in Appendix E, named in column ``experiment``.

    The loss is a dense frontier (Hoffmann et al.) at EL·C, times noise. It is higher if learning rate and batch size
    differ from Eq. 5, or M from Table 5.
    """
    random, dense = rng(), frontier(HOFFMANN_2022)
    laws = {part: published("allocation", f"tian-2025-{part}").law for part in ("moe", "dense")}
    rate_and_batch = published("hyperparameters").law
    rows: list[dict[str, Any]] = []

    def add(
        experiment: str, experts: int, top_k: int, shared: int, width: int, expert: int, flops: float, **moved: Any
    ) -> None:
        part = "dense" if experts == top_k else "moe"
        best = {name: float(value) for name, value in rate_and_batch(Design(flops=flops)).items()}
        scale = float(laws[part](Design(flops=flops))["flops_per_token"]) * moved.get("scale", 1.0)
        gain = float(leverage(LAW, (top_k + shared) / (experts + shared), 2 * width / expert, flops))
        far = sum(np.log(factor) ** 2 for factor in moved.values())
        loss = float(dense(Design(flops=(1.0 if part == "dense" else gain) * flops))) * (1 + 0.02 * far)
        rows.append(
            {
                "experiment": experiment,
                "num_experts": experts,
                "top_k": top_k,
                "num_shared_experts": shared,
                "model_dim": width,
                "expert_hidden": expert,
                "flops": flops,
                "tokens": flops / scale,
                "learning_rate": best["learning_rate"] * moved.get("rate", 1.0),
                "batch_tokens": best["batch_tokens"] * moved.get("batch", 1.0),
                "loss": loss * np.exp(random.normal(0.0, noise)),
            }
        )

    for _, width, *_, flops, _, _ in GROUPS:
        for experts in (2, 4, 8, 16, 32, 64, 128, 256):
            add("Table 8", experts, 2, 1, width, width, flops)
        for experts, expert in zip(EXPERTS[1:], TABLE_9[width][1:], strict=True):
            add("Table 9", experts, experts // 32, experts // 64, width, expert, flops)
    for flops, (experts, top_k) in product((3e17, 1e18, 3e18, 1e19, 3e19, 1e20, 3e20), ((64, 4), (5, 5))):
        shared = 1 if experts == 64 else 0
        for rate, batch in product(2.0 ** np.arange(-1, 1.5, 0.5), 2.0 ** np.arange(-1, 2)):
            add("E.1", experts, top_k, shared, 1024, 1024, flops, rate=rate, batch=batch)
        for scale in 2.0 ** np.arange(-2, 3):
            add("E.2", experts, top_k, shared, 1024, 1024, flops, scale=scale)
    return pd.DataFrame(rows)
