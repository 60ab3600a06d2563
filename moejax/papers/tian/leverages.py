"""Measure the efficiency leverage of every group of MoE models over dense models (Tian et al. 2025, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress
from moejax.fit.sweeps.budget_losses import LEAST_BUDGETS
from moejax.fit.sweeps.leverage import fit_curve, leverage_and_reach
from moejax.wording import counted


@dataclass(frozen=True, kw_only=True)
class Family:
    """Runs of one activation ratio and granularity, with the loss-compute curve of their best runs."""

    activation_ratio: float
    granularity: float
    budgets: int
    curve: FitResult
    runs: Runs
    """All runs; only the runs that the curve is fitted to have a weight above 0."""

    @property
    def spent(self) -> Float[np.ndarray, " fitted"]:
        """FLOPs of the runs that the curve is fitted to."""
        return self.runs.design.flops[self.runs.weight > 0]


@dataclass(frozen=True, kw_only=True)
class Leverages:
    """Leverage of every group of models at each of its trained budgets; NaN if undefined."""

    dense: Family
    families: tuple[Family, ...]
    left_out: tuple[str, ...]
    rows: Int[np.ndarray, " points"]
    """Index of the run with the lowest loss in each group and budget."""
    value: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"]
    high: Float[np.ndarray, " points"]
    """Bounds of the delta-method interval from the noise of both curves; the noise is pooled over all curves."""


def leverages(
    runs: Runs,
    ratio: Float[np.ndarray, " runs"],
    granularity: Float[np.ndarray, " runs"],
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    *,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> Leverages:
    """Apply Algorithm 1 of Tian et al. (2025) to the curve of every group and the dense curve (activation ratio 1).

    Raises:
      UserError: the dense runs or all other groups were trained at too few budgets.
    """
    report = progress or (lambda *_: None)
    best = _best(runs, ratio, granularity, budget)
    dense = best & (ratio == 1)
    if dense.sum() < LEAST_BUDGETS:
        raise UserError(
            f"Dense runs (num_experts 0, or every expert active) were trained at "
            f"{counted(int(dense.sum()), 'budget')}, but their loss-compute curve, the baseline of leverage, needs "
            f"{LEAST_BUDGETS}; train dense models at more budgets."
        )
    kept = runs.only(dense)
    curve, against = fit_curve(kept, seed)
    pairs = sorted(set(zip(ratio[ratio != 1], granularity[ratio != 1], strict=True)))
    families, left_out, taken, curves = [], [], [], []
    for number, (a, g) in enumerate(pairs):
        report("loss-compute curves", number, len(pairs))
        own = best & (ratio == a) & (granularity == g)
        if own.sum() < LEAST_BUDGETS:
            trained = counted(int(own.sum()), "budget")
            left_out.append(f"A = {a:.4g}, G = {g:.4g} was trained at {trained}; {LEAST_BUDGETS} are needed.")
            continue
        fitted, at = fit_curve(runs.only(own), seed)
        families.append(_family(a, g, fitted, runs.only(own)))
        taken.append(np.flatnonzero(own))
        curves.append(at)
    if not families:
        raise UserError(f"No group of MoE models was trained at {LEAST_BUDGETS} budgets: {' '.join(left_out)}")
    values, reaches = zip(
        *(
            leverage_and_reach(one, against, flops[budget[rows]], [*curves, against], level)
            for one, rows in zip(curves, taken, strict=True)
        ),
        strict=True,
    )
    value, reach = np.concatenate(values), np.concatenate(reaches)
    return Leverages(
        dense=_family(1.0, float("nan"), curve, kept),
        families=tuple(families),
        left_out=tuple(left_out),
        rows=np.concatenate(taken),
        value=value,
        low=value * np.exp(-reach),
        high=value * np.exp(reach),
    )


def _family(activation_ratio: float, granularity: float, curve: FitResult, runs: Runs) -> Family:
    number = int((runs.weight > 0).sum())
    return Family(activation_ratio=activation_ratio, granularity=granularity, budgets=number, curve=curve, runs=runs)


def _best(runs: Runs, ratio: np.ndarray, granularity: np.ndarray, budget: np.ndarray) -> Bool[np.ndarray, " runs"]:
    """Return a mask of the lowest-loss run in every group and budget; dense runs are one group."""
    best: dict[tuple[float, float, int], int] = {}
    for i in np.flatnonzero(runs.weight > 0):
        key = (float(ratio[i]), 0.0 if ratio[i] == 1 else float(granularity[i]), int(budget[i]))
        if key not in best or runs.loss[i] < runs.loss[best[key]]:
            best[key] = int(i)
    return np.isin(np.arange(len(runs)), list(best.values()))
