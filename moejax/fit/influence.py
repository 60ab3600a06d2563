"""Which runs decide an answer, by differentiating through the optimum: no refit, exact to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from moejax.fit.fit_result import FitResult
from moejax.fit.optimum import Decision, optimum
from moejax.fit.runs import Runs


@dataclass(frozen=True, kw_only=True)
class Influence:
    """How every run moves one number."""

    answer: float
    per_nat: Float[np.ndarray, " runs"]
    """What the answer gains per nat more in a run's loss; 0 for a run that Huber's penalty treats as an outlier."""
    if_removed: Float[np.ndarray, " runs"]
    """What the answer gains, to first order, if the run had not been trained."""

    def most(self, count: int = 3) -> list[int]:
        """Numbers of the runs whose removal moves the answer most."""
        return [int(i) for i in np.argsort(-np.abs(self.if_removed))[:count]]

    def sentence(self, name: str, labels: Sequence[str] | None = None, count: int = 3) -> str:
        """Which runs decide the answer, in words."""
        parts = []
        for i in self.most(count):
            label = labels[i] if labels is not None else f"run {i + 1}"
            parts.append(f"without {label} it would be {self.answer + self.if_removed[i]:.4g}")
        return f"{name} is {self.answer:.4g}; " + ", ".join(parts) + "."


def influence(result: FitResult, runs: Runs, decision: Decision) -> list[Influence]:
    """Influence of every run on every number of a decision, in the order of its leaves.

    At an optimum the slope of the objective is 0 whatever the losses are; differentiating that in the losses gives
    du/dL = -H⁻¹ · ∂²F/∂u∂L, and in the weights du/dw = -H⁻¹ · ∂F_i/∂u (the implicit function theorem).
    """
    at = optimum(result, runs)
    answers, _ = at.decide(decision)
    slopes = at.slopes(decision)
    per_nat = -slopes @ at.solve((at.weight[:, None] * at.bends).T)
    if_removed = slopes @ at.solve((at.weight[:, None] * at.scores).T)
    return [
        Influence(answer=float(a), per_nat=n, if_removed=r)
        for a, n, r in zip(answers, per_nat, if_removed, strict=True)
    ]
