"""Efficiency leverage over activation ratio and granularity: how much compute a mixture saves, by one law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from moejax.laws.law import Law
from moejax.laws.mixtures.leverage import optimal_granularity
from moejax.report.figures.figure import evaluate
from moejax.report.figures.panels import Axis, Field, Series
from moejax.report.figures.style import INK

RATIO = Axis("activation_ratio", "activation ratio A", "percent")
GRANULARITY = Axis("granularity", "granularity G", "log")
LEVERAGE = Axis("efficiency_leverage", "efficiency leverage EL", "log")


def leverage(law: Law, ratio: ArrayLike, granularity: ArrayLike, flops: ArrayLike) -> np.ndarray:
    """Return the efficiency leverage of mixtures by activation ratio and granularity."""
    return evaluate(
        law,
        "efficiency_leverage",
        num_experts=1.0,
        top_k=ratio,
        num_shared_experts=0.0,
        model_dim=granularity,
        expert_hidden=2.0,
        flops=flops,
    )


def field(law: Any, flops: float, marks: Sequence[Series]) -> Field:
    """Return the efficiency leverage over granularity and activation ratio at a budget, with a line at the best
    granularity.
    """
    ratio, granularity = np.geomspace(0.0078, 1.0, 61), np.geomspace(2.0, 32.0, 41)
    best = float(np.asarray(optimal_granularity(law, 0.031, flops).value["granularity"]))
    line = Series(label="best granularity", x=[best, best], y=[ratio[0], ratio[-1]], mark="dashed", colour=INK)
    return Field(
        x=GRANULARITY,
        y=RATIO,
        z=Axis("efficiency_leverage", "efficiency leverage"),
        xs=granularity,
        ys=ratio,
        zs=leverage(law, ratio[:, None], granularity[None, :], flops),
        marks=[line, *marks],
        high_is_good=True,
        contours=(1.5, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    )
