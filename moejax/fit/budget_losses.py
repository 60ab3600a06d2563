"""The loss that a family of runs reaches at each budget: the least over model sizes, without luck where it can be.

The run of lowest loss is lucky, and the luckier the more runs it is the lowest of. Near the best size, log loss is a
quadratic in log size. Its curvature, and where it is least, change along with the log budget; its level is each
budget's own. So three sizes of each are enough, where a quadratic through each alone would pass through their luck,
and a budget of one size has its minimum by the quadratics of the others. A budget whose sizes all lie on one side of
the best one has a higher loss than the least there is: it is left out where enough others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int
from numpy.polynomial import Polynomial

from moejax.fit.isoflop_curves import LEAST_SIZES, end
from moejax.fit.runs import Runs, budgets, sums_by_group
from moejax.laws.design import known

NEAR_LOSS = 0.03
"""Share of a budget's lowest loss above which a run is not near it. Of sizes that differ by a factor of 2, three lie
nearer, and the minima are those of Chinchilla's law within .0003."""
SIZES = ("params_active", "params_total", "tokens")
"""What a budget is split by, the first that a table has: at one budget the tokens say the size too."""
LEAST_BUDGETS = 4
"""A loss-compute curve has three coefficients."""
AROUND = 1.5
"""A minimum this many times outside the sizes near it is still between what was tried: the quadratic bends by a few
tenths of a percent there."""
CERTAIN = 0.95
"""How sure it must be that the loss still falls at the end of what was tried for a budget to be left out."""
MIXTURES = ("num_experts", "top_k", "num_shared_experts")
"""Runs that differ in these are no sweep over sizes."""


@dataclass(frozen=True, kw_only=True)
class BudgetLosses:
    """One loss for each budget of a family, from the smallest budget."""

    runs: Runs
    """A run for each: the minimum of its quadratic, or the run of lowest loss."""
    counts: Int[np.ndarray, " budgets"]
    """Runs that were trained."""
    near: Int[np.ndarray, " budgets"]
    """How many of them have a loss near the lowest (``NEAR_LOSS``)."""
    size: str
    """What the quadratics are in; empty where no size is known."""
    smoothed: Bool[np.ndarray, " budgets"]
    """Whether the loss is a quadratic's."""
    at_an_end: Bool[np.ndarray, " budgets"]
    """Whether that is least at the smallest or the largest size that was tried: a better one may lie beyond."""
    own: Float[np.ndarray, " budgets"]
    """Variance of log loss by the luck of a budget's own level, over that of one run's."""
    shared: Float[np.ndarray, "budgets budgets"]
    """Covariance of log loss by the luck of what all quadratics share, in the same unit."""
    residual: float
    """Weighted sum of squares of log loss around the quadratics."""
    degrees_of_freedom: int
    left_out: Float[np.ndarray, " others"]
    """FLOPs of budgets whose best size lies beyond the sizes that were tried."""

    def _only(self, rows: Int[np.ndarray, " kept"]) -> BudgetLosses:
        parts = ("counts", "near", "smoothed", "at_an_end", "own")
        kept = {name: getattr(self, name)[rows] for name in parts}
        return replace(self, **kept, runs=self.runs.where(rows), shared=self.shared[np.ix_(rows, rows)])

    @property
    def lowest_of(self) -> float:
        """Of how many runs near each other a budget's loss is the lowest, in mean; a quadratic's counts as of one."""
        return float(np.where(self.smoothed, 1, self.near).mean())


def budget_losses(runs: Runs) -> BudgetLosses:
    """The losses of a family whose runs say what they spent; runs of weight 0 are left out.

    A budget's loss is a quadratic's where at least three sizes of one kind of model lie near some budgets' lowest loss,
    and runs are left that say how far they scatter around the quadratics. The budgets whose minima lie within the sizes
    that were tried are then enough, if there are ``LEAST_BUDGETS`` of them.
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

    # Of one budget alone nothing says how the quadratics change along with it.
    taken = swept | (swept.sum() > 1)
    found = minima(taken, AROUND)
    if found is not None and (kept := found.inside).sum() >= LEAST_BUDGETS:
        within = np.flatnonzero(taken)[kept]
        return replace(_with_minima(lowest, taken, found, flops)._only(within), left_out=np.delete(flops, within))
    found = minima(swept, 1.0)
    if found is None:
        return lowest
    logs = [np.log(design[size][rows]) for rows in every]
    ends = np.array([(one.min(), one.max()) for one, is_swept in zip(logs, swept, strict=True) if is_swept])
    at_an_end = np.zeros(len(flops), bool)
    at_an_end[swept] = end(found.log_size, *ends.T) != 0
    return replace(_with_minima(lowest, swept, found, flops), at_an_end=at_an_end)


def _with_minima(
    lowest: BudgetLosses,
    swept: Bool[np.ndarray, " budgets"],
    found: _Valleys,
    flops: Float[np.ndarray, " budgets"],
) -> BudgetLosses:
    """The minima in place of the runs of lowest loss, where there are some."""
    spent = np.where(swept, flops, lowest.runs.design.flops)
    loss, own, shared = (part.copy() for part in (lowest.runs.loss, lowest.own, lowest.shared))
    loss[swept], own[swept] = found.loss, found.own
    shared[np.ix_(swept, swept)] = found.shared
    return replace(
        lowest,
        runs=replace(lowest.runs, design=replace(lowest.runs.design, flops=spent), loss=loss),
        smoothed=swept,
        own=own,
        shared=shared,
        residual=found.residual,
        degrees_of_freedom=found.degrees_of_freedom,
    )


def _is_one_kind(design: Mapping[str, np.ndarray], rows: np.ndarray) -> bool:
    """Whether runs of one budget are of one kind of model."""
    return all(len(np.unique(design[name][rows])) == 1 for name in MIXTURES if name in design)


@dataclass(frozen=True, kw_only=True)
class _Valleys:
    """The minima of the quadratics of some budgets, as ``BudgetLosses`` has them."""

    loss: np.ndarray
    log_size: np.ndarray
    """Where they lie."""
    inside: np.ndarray
    """Whether within the sizes that were tried and a little around them, as far as luck tells."""
    own: np.ndarray
    shared: np.ndarray
    residual: float
    degrees_of_freedom: int


def _valleys(runs: Runs, size: str, number: np.ndarray, around: float) -> _Valleys | None:
    """The minima by weighted least squares; None where no run is left that says how far runs scatter.

    Args:
      around: how many times outside the sizes of a budget its minimum may lie; farther out it is at the end.
    """
    _, budget = np.unique(number, return_inverse=True)
    weight = runs.weight

    def mean(values: np.ndarray) -> np.ndarray:
        """Of every budget, from values of runs."""
        sums = sums_by_group((values.T * weight).T, budget)
        return (sums.T / sums_by_group(weight, budget)).T

    x, z = np.log(known(runs.design)[size]), np.log(runs.design.flops)
    # The best size goes about with the root of the budget: along that, quadratics are nearly one.
    middle = mean(z) / 2 + x.mean() - z.mean() / 2
    x = x - middle[budget]
    z = (mean(z) - z.mean())[budget]
    root = np.sqrt(weight)
    terms, logs = _terms(x, z), np.log(runs.loss)
    # Less the means of each budget: what is left knows nothing of its level, whose luck is then that of its mean.
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
        # How steeply the loss still falls towards what was not tried, and how far that is luck.
        steep = 0.0
        if at[-1] in (low, high):
            outwards = (1.0 if at[-1] == high else -1.0) * np.array([1.0, spent, 2 * at[-1], 2 * at[-1] * spent])
            luck = np.sqrt(noise * outwards @ covariance @ outwards)
            steep = -outwards @ slopes / max(luck, 1e-300)
        inside.append(bool(steep < certain))
    # To first order a minimum moves with the quadratic where it lies, and not with where it lies.
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
    """What a quadratic in log size is made of whose slope and curvature change along with the log budget."""
    return np.column_stack([size, size * budget, size**2, size**2 * budget])
