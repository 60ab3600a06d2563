"""Tian's laws of two powers of compute: hyperparameters and the split into model scale and tokens, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float, Int

from moejax.fit.runs import Runs
from moejax.laws.allocation import Allocation
from moejax.laws.hyperparameters import Hyperparameters
from moejax.laws.law import coefficients
from moejax.result import Column, Table

NEAR_OPTIMAL = 0.0025
"""Appendix E.1: a run is near-optimal if its loss is within 0.25 % of the lowest at its budget."""
LEVEL = 0.9


@dataclass(frozen=True, kw_only=True)
class PowerLaws:
    """A law of two powers of compute, by least squares in logarithms."""

    name: str
    law: Any
    runs: int
    budgets: int
    exponents: dict[str, tuple[float, float]]
    """90 % interval of each exponent, by Student's t."""

    def table(self) -> Table:
        """Coefficients, with the intervals of the exponents."""
        ends = {name: f"[{low:.4f}, {high:.4f}]" for name, (low, high) in self.exponents.items()}
        rows = [[name, float(value), ends.get(name)] for name, value in coefficients(self.law).items()]
        columns = (Column("coefficient"), Column("value", ".6g"), Column(f"{LEVEL:.0%} interval"))
        return Table(f"{self.name}: {self.runs} runs at {self.budgets} budgets", columns, rows)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        law = {name: float(value) for name, value in coefficients(self.law).items()}
        exponents = {name: list(ends) for name, ends in self.exponents.items()}
        return {"name": self.name, "law": law, "runs": self.runs, "budgets": self.budgets, "exponents": exponents}


def hyperparameter_law(
    runs: Runs,
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    parts: Mapping[str, Bool[np.ndarray, " runs"]],
    learning_rate: Float[np.ndarray, " runs"] | None,
    batch_tokens: Float[np.ndarray, " runs"] | None,
) -> tuple[PowerLaws, ...]:
    """Eq. 5 of every part of the runs, through its near-optimal runs; none without learning rates and batches.

    A run that is the only one at its budget says nothing of what is optimal there, and is not used.
    """
    if learning_rate is None or batch_tokens is None:
        return ()
    laws = []
    for part, mask in parts.items():
        kept = np.zeros(len(runs), bool)
        for number in np.unique(budget[mask]):
            here = mask & (budget == number) & (runs.weight > 0)
            tried = len(set(zip(learning_rate[here], batch_tokens[here], strict=True)))
            if tried > 1:
                kept |= here & (runs.loss <= runs.loss[here].min() * (1 + NEAR_OPTIMAL))
        if enough(budget[kept]):
            x = flops[budget[kept]]
            rate, batch = power_through(x, learning_rate[kept]), power_through(x, batch_tokens[kept])
            law = Hyperparameters(
                learning_rate_scale=rate[0],
                learning_rate_exponent=rate[1],
                batch_scale=batch[0],
                batch_exponent=batch[1],
            )
            ends = {"learning_rate_exponent": rate[2], "batch_exponent": batch[2]}
            laws.append(_laws(f"hyperparameters of {part} (Eq. 5)", law, budget[kept], ends))
    return tuple(laws)


def allocation_law(
    runs: Runs,
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    parts: Mapping[str, Bool[np.ndarray, " runs"]],
) -> tuple[PowerLaws, ...]:
    """Eq. 6 and Table 5 of every part: M = C/D and D of the lowest loss at each budget with more than one D."""
    tokens, spent = runs.design.tokens, runs.design.flops
    if tokens is None:
        return ()
    laws = []
    for part, mask in parts.items():
        best = []
        for number in np.unique(budget[mask]):
            here = np.flatnonzero(mask & (budget == number) & (runs.weight > 0))
            if len(here) and len(np.unique(tokens[here])) > 1:
                best.append(here[np.argmin(runs.loss[here])])
        best = np.asarray(best, int)
        if enough(budget[best]):
            scale, data = (
                power_through(spent[best], spent[best] / tokens[best]),
                power_through(spent[best], tokens[best]),
            )
            law = Allocation(
                model_scale=scale[0], model_exponent=scale[1], tokens_scale=data[0], tokens_exponent=data[1]
            )
            ends = {"model_exponent": scale[2], "tokens_exponent": data[2]}
            laws.append(_laws(f"allocation of {part} (Eq. 6)", law, budget[best], ends))
    return tuple(laws)


def enough(budget: Int[np.ndarray, " runs"]) -> bool:
    """Whether a line through these budgets has an interval."""
    return len(np.unique(budget)) >= 3


def power_through(
    flops: Float[np.ndarray, " points"], values: Float[np.ndarray, " points"], level: float = LEVEL
) -> tuple[float, float, tuple[float, float]]:
    """Scale and exponent of ``values`` against compute, and the exponent's interval by Student's t."""
    x, y = np.log(flops), np.log(values)
    (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
    reach = float(scipy.stats.t.ppf((1 + level) / 2, len(x) - 2) * np.sqrt(covariance[0, 0]))
    return float(np.exp(intercept)), float(slope), (float(slope - reach), float(slope + reach))


def _laws(name: str, law: Any, budget: np.ndarray, ends: dict[str, tuple[float, float]]) -> PowerLaws:
    return PowerLaws(name=name, law=law, runs=len(budget), budgets=len(np.unique(budget)), exponents=ends)
