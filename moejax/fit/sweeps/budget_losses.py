"""Estimate the lowest loss of a set of runs at each budget, without selection bias where possible.

Noise biases the lowest measured loss downwards, and more so if it is chosen from more runs. Near the best size, log
loss is a quadratic in log size. Its curvature and minimum change with the log budget; its level is separate for each
budget. Three sizes per budget are therefore enough, although a separate quadratic through three sizes would fit their
noise. A budget with fewer sizes gets its minimum from the other budgets' quadratics. If all sizes of a budget are on
one side of the best size, its estimate is too high. Such a budget is left out if enough others remain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int
from numpy.polynomial import Polynomial

from moejax.fit.runs import Runs, budgets, sums_by_group
from moejax.laws.design import known

NEAR_LOSS = 0.03
"""Relative excess over the budget's lowest loss up to which a run is near it. This includes three sizes that differ by
factors of 2, and the minima agree with Chinchilla's law within 0.0003."""
SIZES = ("params_active", "params_total", "tokens")
"""Size variables in order of preference; at a fixed budget, tokens determine the size too."""
LEAST_SIZES = 3
"""Minimum number of sizes of a budget whose quadratic is fitted; fewer sizes do not determine the curvature."""
LEAST_BUDGETS = 4
"""Minimum number of budgets: a loss-compute curve has three coefficients."""
AROUND = 1.5
"""Factor by which a minimum may be outside the sizes near it and still count as within the swept range. The quadratic
changes by a few tenths of a percent over this factor."""
CERTAIN = 0.95
"""Confidence that the loss still falls at the end of the swept sizes, required to leave a budget out."""
AT_AN_END = 1e-6
"""Distance from the smallest or largest size, as a share of their logarithmic distance, within which a minimum counts
as being there."""
MIXTURES = ("num_experts", "top_k", "num_shared_experts")
"""Fields in which the runs of one size sweep must not differ."""


@dataclass(frozen=True, kw_only=True)
class BudgetLosses:
    """One loss per budget for a set of runs, in ascending order of budget."""

    runs: Runs
    """One run per budget: the minimum of its quadratic, or the run with the lowest loss."""
    counts: Int[np.ndarray, " budgets"]
    """Number of trained runs per budget."""
    near: Int[np.ndarray, " budgets"]
    """Number of runs per budget whose loss is near the lowest (``NEAR_LOSS``)."""
    size: str
    """Size variable of the quadratics; empty if no size is known."""
    smoothed: Bool[np.ndarray, " budgets"]
    """True if the loss is the minimum of a quadratic."""
    at_an_end: Bool[np.ndarray, " budgets"]
    """True if the minimum is at the smallest or largest size, so that a better size may exist beyond it."""
    own: Float[np.ndarray, " budgets"]
    """Variance of each budget's log loss due to its own level, in units of the variance of one run."""
    shared: Float[np.ndarray, "budgets budgets"]
    """Covariance of the budgets' log losses due to the coefficients that all quadratics share, in units of the variance
    of one run."""
    residual: float
    """Weighted sum of squares of log loss around the quadratics."""
    degrees_of_freedom: int
    left_out: Float[np.ndarray, " others"]
    """FLOPs of budgets whose best size is beyond the swept sizes."""

    def _only(self, rows: Int[np.ndarray, " kept"]) -> BudgetLosses:
        parts = ("counts", "near", "smoothed", "at_an_end", "own")
        kept = {name: getattr(self, name)[rows] for name in parts}
        return replace(self, **kept, runs=self.runs.where(rows), shared=self.shared[np.ix_(rows, rows)])

    @property
    def lowest_of(self) -> float:
        """Mean number of runs that a budget's loss is chosen from; 1 for the minimum of a quadratic."""
        return float(np.where(self.smoothed, 1, self.near).mean())


def budget_losses(runs: Runs) -> BudgetLosses:
    """Return the lowest loss at each budget of runs with known FLOPs; runs of weight 0 are left out.

    A budget's loss is the minimum of a quadratic in log size if at least three sizes are near its lowest loss. The
    quadratics require that in each budget all runs near the lowest loss have one architecture type (equal experts,
    top-k and shared experts), and that residual degrees of freedom remain. Without a quadratic, the loss is the lowest
    measured loss. If at least ``LEAST_BUDGETS`` budgets have minima within the swept sizes, only these budgets are
    returned.
    """
    runs = runs.where(runs.weight > 0)
    design = known(runs.design)
    number, flops = budgets(runs.design.flops)
    size = next((name for name in SIZES if name in design), "")
    every = [np.flatnonzero(number == one) for one in range(len(flops))]
    near = [rows[runs.loss[rows] <= (1 + NEAR_LOSS) * runs.loss[rows].min()] for rows in every]
    one_kind = bool(size) and all(_is_one_kind(design, rows) for rows in near)
    swept = np.array([one_kind and len(np.unique(design[size][rows])) >= LEAST_SIZES for rows in near])
    best = runs.where(np.array([rows[np.argmin(runs.loss[rows])] for rows in every]))
    none = np.zeros(len(flops), bool)
    lowest = BudgetLosses(
        runs=best,
        counts=np.array([len(rows) for rows in every]),
        near=np.array([len(rows) for rows in near]),
        size=size,
        smoothed=none,
        at_an_end=none,
        own=1 / best.weight,
        shared=np.zeros((len(flops), len(flops))),
        residual=0.0,
        degrees_of_freedom=0,
        left_out=np.zeros(0),
    )
    if not swept.any():
        return lowest

    def minima(taken: Bool[np.ndarray, " budgets"], around: float) -> _Valleys | None:
        rows = np.concatenate([one for one, is_taken in zip(near, taken, strict=True) if is_taken])
        return _valleys(runs.where(rows), size, number[rows], around)

    # A single budget does not determine how the quadratics change with the budget.
    taken = swept | (swept.sum() > 1)
    valleys = minima(taken, AROUND)
    if valleys is not None and (kept := valleys.inside).sum() >= LEAST_BUDGETS:
        within = np.flatnonzero(taken)[kept]
        return replace(_with_minima(lowest, taken, valleys, flops)._only(within), left_out=np.delete(flops, within))
    valleys = minima(swept, 1.0)
    if valleys is None:
        return lowest
    logs = [np.log(design[size][rows]) for rows in every]
    ends = np.array([(one.min(), one.max()) for one, is_swept in zip(logs, swept, strict=True) if is_swept])
    at_an_end = np.zeros(len(flops), bool)
    at_an_end[swept] = end(valleys.log_size, *ends.T) != 0
    return replace(_with_minima(lowest, swept, valleys, flops), at_an_end=at_an_end)


def _with_minima(
    lowest: BudgetLosses,
    swept: Bool[np.ndarray, " budgets"],
    valleys: _Valleys,
    flops: Float[np.ndarray, " budgets"],
) -> BudgetLosses:
    """Replace the lowest measured losses by the minima of the quadratics where these exist."""
    spent = np.where(swept, flops, lowest.runs.design.flops)
    loss, own, shared = (part.copy() for part in (lowest.runs.loss, lowest.own, lowest.shared))
    loss[swept], own[swept] = valleys.loss, valleys.own
    shared[np.ix_(swept, swept)] = valleys.shared
    return replace(
        lowest,
        runs=replace(lowest.runs, design=replace(lowest.runs.design, flops=spent), loss=loss),
        smoothed=swept,
        own=own,
        shared=shared,
        residual=valleys.residual,
        degrees_of_freedom=valleys.degrees_of_freedom,
    )


def _is_one_kind(design: Mapping[str, np.ndarray], rows: np.ndarray) -> bool:
    return all(len(np.unique(design[name][rows])) == 1 for name in MIXTURES if name in design)


@dataclass(frozen=True, kw_only=True)
class _Valleys:
    """The minima of quadratics for some budgets, with fields as in ``BudgetLosses``."""

    loss: np.ndarray
    log_size: np.ndarray
    """Log sizes of the minima, clipped to the allowed sizes."""
    inside: np.ndarray
    """False if the loss still falls significantly at the end of the allowed sizes."""
    own: np.ndarray
    shared: np.ndarray
    residual: float
    degrees_of_freedom: int


def _valleys(runs: Runs, size: str, number: np.ndarray, around: float) -> _Valleys | None:
    """Fit the quadratics by weighted least squares; return None if no degrees of freedom remain.

    Args:
      around: factor by which a minimum may be outside a budget's sizes; a minimum farther out is clipped.
    """
    _, budget = np.unique(number, return_inverse=True)
    weight = runs.weight

    def mean(values: np.ndarray) -> np.ndarray:
        """Return the weighted mean of the runs' values in each budget."""
        sums = sums_by_group((values.T * weight).T, budget)
        return (sums.T / sums_by_group(weight, budget)).T

    x, z = np.log(known(runs.design)[size]), np.log(runs.design.flops)
    # The best size scales roughly with the square root of the budget; relative to that, the quadratics nearly coincide.
    middle = mean(z) / 2 + x.mean() - z.mean() / 2
    x = x - middle[budget]
    z = (mean(z) - z.mean())[budget]
    root = np.sqrt(weight)
    terms, logs = _terms(x, z), np.log(runs.loss)
    # Subtracting each budget's mean removes its level. The level then has the error of the budget's mean.
    matrix, y = root[:, None] * (terms - mean(terms)[budget]), root * (logs - mean(logs)[budget])
    scale = np.linalg.norm(matrix, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    shared, _, rank, _ = np.linalg.lstsq(matrix / scale, y, rcond=None)
    degrees_of_freedom = len(x) - len(np.unique(budget)) - int(rank)
    if degrees_of_freedom < 1:
        return None
    covariance = np.linalg.pinv((matrix / scale).T @ (matrix / scale), hermitian=True) / np.outer(scale, scale)
    slopes = shared / scale
    residual = float(np.sum((y - matrix @ slopes) ** 2))
    noise = residual / degrees_of_freedom
    certain = scipy.special.stdtrit(degrees_of_freedom, CERTAIN)
    at, inside = [], []
    for one in range(budget.max() + 1):
        here = budget == one
        low, high = float(x[here].min()) - np.log(around), float(x[here].max()) + np.log(around)
        (spent,) = np.unique(z[here])
        quadratic = Polynomial([0.0, *(slopes.reshape(2, 2) @ [1.0, spent])])
        roots = quadratic.deriv().roots() if quadratic.coef[2] > 0 else np.zeros(0)
        at.append(min((low, high, *np.clip(roots, low, high)), key=quadratic))
        # Compare the remaining slope at the bound with its standard error.
        steep = 0.0
        if at[-1] in (low, high):
            outwards = (1.0 if at[-1] == high else -1.0) * np.array([1.0, spent, 2 * at[-1], 2 * at[-1] * spent])
            luck = np.sqrt(noise * outwards @ covariance @ outwards)
            steep = -outwards @ slopes / max(luck, 1e-300)
        inside.append(bool(steep < certain))
    # To first order, a minimum's value depends on the quadratic at the minimum, not on the position of the minimum.
    moves = _terms(np.array(at), mean(z)) - mean(terms)
    return _Valleys(
        loss=np.exp(mean(logs) + moves @ slopes),
        log_size=middle + np.array(at),
        inside=np.array(inside),
        own=1 / sums_by_group(weight, budget),
        shared=moves @ covariance @ moves.T,
        residual=residual,
        degrees_of_freedom=degrees_of_freedom,
    )


def _terms(size: np.ndarray, budget: np.ndarray) -> Float[np.ndarray, "runs terms"]:
    """Return the terms of a quadratic in log size whose slope and curvature depend on the log budget."""
    return np.column_stack([size, size * budget, size**2, size**2 * budget])


def end(logs: np.ndarray | float, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """Return -1 if a minimum between two logarithms is at the lower end, 1 at the upper end, and 0 in between."""
    margin = AT_AN_END * (high - low)
    return np.where(logs <= low + margin, -1, np.where(logs >= high - margin, 1, 0))
