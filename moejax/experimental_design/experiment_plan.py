"""Plan the runs to train next: their order, and the expected uncertainty of the answers.

The Frank-Wolfe algorithm first finds the best fractional number of runs per candidate. Integer runs are then added one
by one, and exchanged as long as an exchange lowers the variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from moejax.errors import UserError
from moejax.experimental_design.criterion import (
    Array,
    PosteriorArrays,
    posterior_arrays,
    share_left,
    sums,
    variances,
    with_run,
)
from moejax.experimental_design.laplace_posterior import LaplacePosterior
from moejax.fit.fit_result import FitResult
from moejax.float64 import float64
from moejax.wording import argument

STEPS = 60
LINE_SEARCH_POINTS = 12
"""Number of points in a line search."""
PRICES = 60
"""Number of bisections for the price of FLOPs, enough for floating-point precision."""
CLOSE = 0.005
"""Relative gap to the bound at which the search ends."""


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """Limits on FLOPs, runs, and repeats of a candidate."""

    flops: float
    runs: int
    repeats: int = 1
    """Maximum number of runs of one candidate."""
    causal: bool = False
    """True if the FLOPs exclude masked attention scores, as in chip-hours at an MFU."""


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """Solution of the relaxed problem."""

    counts: Float[np.ndarray, " candidates"]
    left: float
    """Remaining share of the variance."""
    bound: float
    """Lower bound of the remaining share for this budget; valid only for a single law, whose share is convex."""


def relax(known: PosteriorArrays, cost: Float[np.ndarray, " candidates"], budget: RunBudget) -> Relaxed:
    """Find the fractional numbers of runs that minimize the variance within a budget."""
    counts, bound = np.zeros(len(cost)), 0.0
    with float64():
        left = 1.0
        for _ in range(STEPS):
            value, slope = (np.asarray(part) for part in _slope(known, counts))
            left = float(value)
            end = corner(slope, cost, budget)
            bound = max(bound, left + float(slope @ (end - counts)))
            if left - bound <= CLOSE * left:
                break
            # Line search: evaluate the share on a coarse grid, then on a finer grid around its minimum.
            ways = np.geomspace(1e-3, 1.0, LINE_SEARCH_POINTS)
            there = np.asarray(_along(known, counts, end, ways))
            best = int(np.argmin(there))
            finer = np.linspace(ways[max(best - 1, 0)], ways[min(best + 1, LINE_SEARCH_POINTS - 1)], LINE_SEARCH_POINTS)
            there = np.asarray(_along(known, counts, end, finer))
            if there.min() >= left:
                break
            counts = counts + finer[int(np.argmin(there))] * (end - counts)
    return Relaxed(counts=counts, left=left, bound=bound)


def corner(slope: np.ndarray, cost: np.ndarray, budget: RunBudget) -> np.ndarray:
    """Return the feasible numbers of runs that minimize the linearized share (``slope``).

    This is a linear program with two constraints. At a given price of FLOPs, the best runs minimize slope + price ·
    cost. Bisection finds the price at which they use the whole budget.
    """

    def at(price: float) -> np.ndarray:
        worth = slope + price * cost / budget.flops
        counts = np.zeros(len(cost))
        best = np.argsort(worth)[: -(-budget.runs // budget.repeats)]
        best = best[worth[best] < 0]
        counts[best] = np.minimum(budget.repeats, budget.runs - budget.repeats * np.arange(len(best)))
        return counts

    dear, cheap = at(0.0), np.zeros(len(cost))
    if dear @ cost <= budget.flops:
        return dear
    low, high = 0.0, float(np.max(-slope * budget.flops / cost))
    for _ in range(PRICES):
        middle = (low + high) / 2
        if (counts := at(middle)) @ cost > budget.flops:
            low, dear = middle, counts
        else:
            high, cheap = middle, counts
    share = (budget.flops - cheap @ cost) / (dear @ cost - cheap @ cost)
    return cheap + share * (dear - cheap)


@jax.jit
def _slope(known: PosteriorArrays, counts: Array) -> tuple[Array, Array]:
    before = sums(known, jnp.zeros_like(counts))
    return jax.value_and_grad(lambda n: share_left(known, sums(known, n), before))(counts)


@jax.jit
def _along(known: PosteriorArrays, counts: Array, end: Array, ways: Array) -> Array:
    before = sums(known, jnp.zeros_like(counts))
    return jax.vmap(lambda way: share_left(known, sums(known, counts + way * (end - counts)), before))(ways)


ENOUGH = 1e-4
"""Minimum relative improvement of an exchange."""
SWEEPS = 4

Counts = Int[np.ndarray, " candidates"]


def exchange(
    known: PosteriorArrays,
    cost: Float[np.ndarray, " candidates"],
    budget: RunBudget,
    relaxed: Float[np.ndarray, " candidates"] | None,
    *,
    sweeps: int = SWEEPS,
) -> Counts:
    """Return the number of runs of each candidate: the best of three initial guesses, each improved by exchanges.

    One guess uses the relaxed numbers (rounded up from 0.7). Two guesses begin with no runs and add the runs with the
    largest gain per FLOP or the largest gain.
    """
    with float64():
        known = jax.tree.map(jnp.asarray, known)
        begun = [(np.floor(relaxed + 0.3).astype(int), 1.0)] if relaxed is not None else []
        begun += [(np.zeros(len(cost), int), 0.0), (np.zeros(len(cost), int), 1.0)]
        improved = []
        for counts, per_flop in begun:
            counts = _fill(known, cost, budget, _within(counts, cost, budget), per_flop)
            counts = _fill(known, cost, budget, counts, 0.0)
            improved.append(_swap(known, cost, budget, counts, sweeps))
        return min(improved, key=lambda counts: float(_left(known, counts)))


def _within(counts: Counts, cost: np.ndarray, budget: RunBudget) -> Counts:
    """Return the counts reduced to the budget, keeping the cheapest runs."""
    kept, counts = np.zeros_like(counts), np.minimum(counts, budget.repeats)
    for i in np.argsort(cost):
        for _ in range(counts[i]):
            kept[i] += 1
            if kept @ cost > budget.flops or kept.sum() > budget.runs:
                kept[i] -= 1
                return kept
    return kept


def _allowed(counts: Counts, cost: np.ndarray, budget: RunBudget) -> np.ndarray:
    """Return a mask of the candidates for which one more run fits into the budget."""
    room = counts @ cost + cost <= budget.flops * (1 + 1e-9)
    return room & (counts < budget.repeats) & (counts.sum() < budget.runs)


def _fill(known: PosteriorArrays, cost: np.ndarray, budget: RunBudget, counts: Counts, per_flop: float) -> Counts:
    while (allowed := _allowed(counts, cost, budget)).any():
        now, after = (np.asarray(part) for part in _with_each(known, counts.astype(float)))
        gain = np.where(allowed, (now - after) / cost**per_flop, -np.inf)
        best = int(np.argmax(gain))
        if not gain[best] > 0:
            break
        counts = counts.copy()
        counts[best] += 1
    return counts


def _swap(known: PosteriorArrays, cost: np.ndarray, budget: RunBudget, counts: Counts, sweeps: int) -> Counts:
    for _ in range(sweeps):
        changed = False
        for out in np.flatnonzero(counts):
            now = float(_left(known, counts))
            fewer = counts.copy()
            fewer[out] -= 1
            _, after = (np.asarray(part) for part in _with_each(known, fewer.astype(float)))
            after = np.where(_allowed(fewer, cost, budget), after, np.inf)
            best = int(np.argmin(after))
            if after[best] < now * (1 - ENOUGH):
                counts, changed = fewer, True
                counts[best] += 1
        counts = _fill(known, cost, budget, counts, 0.0)
        if not changed:
            break
    return counts


def in_order(known: PosteriorArrays, counts: Counts, cost: np.ndarray) -> list[int]:
    """Return candidate indices in training order: each run has the largest gain per FLOP after the earlier runs."""
    order, chosen = [], np.zeros(len(counts))
    with float64():
        while (chosen < counts).any():
            now, after = (np.asarray(part) for part in _with_each(known, chosen))
            gain = np.where(chosen < counts, (now - after) / cost, -np.inf)
            order.append(int(np.argmax(gain)))
            chosen[order[-1]] += 1
    return order


def left_after(known: PosteriorArrays, order: list[int]) -> Float[np.ndarray, " runs"]:
    """Return the remaining share of the variance after each run of ``order``."""
    counts, shares = np.zeros(len(known["laws"][0]["slopes"])), []
    with float64():
        for one in order:
            counts[one] += 1
            shares.append(float(_left(known, counts)))
    return np.asarray(shares)


@jax.jit
def _left(known: PosteriorArrays, counts: Array) -> Array:
    counts = jnp.asarray(counts, float)
    return share_left(known, sums(known, counts), sums(known, jnp.zeros_like(counts)))


@jax.jit
def _with_each(known: PosteriorArrays, counts: Array) -> tuple[Array, Array]:
    """Return the remaining share, and the share with one more run of every candidate."""
    before, now = sums(known, jnp.zeros_like(counts)), sums(known, counts)
    each = jax.vmap(lambda one: share_left(known, with_run(known, now, one), before))
    return share_left(known, now, before), each(jnp.arange(len(counts)))


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """Runs to train, in order of information per FLOP."""

    order: tuple[int, ...]
    """Indices of candidates, repeated for repeated runs."""
    left: Float[np.ndarray, " runs"]
    """Remaining share of the answers' variance after each run."""
    before: Float[np.ndarray, " answers"]
    """Standard deviation of every answer's logarithm, including the disagreement between laws."""
    after: Float[np.ndarray, " answers"]
    """Expected standard deviation after all runs."""
    bound: float
    """Lower bound of the remaining share of the variance for this budget; 0 for several laws, which have no bound."""
    unidentified: tuple[tuple[bool, ...], ...]
    """Per law, a mask of the answers that the runs so far do not identify."""
    still_unidentified: tuple[tuple[bool, ...], ...]
    """Per law, a mask of the answers that the new runs do not identify either."""

    @property
    def efficiency(self) -> float:
        """Ratio of the bound to the remaining share: 1 is optimal."""
        return self.bound / float(self.left[-1]) if len(self.left) else 0.0


def choose_runs(
    posteriors: Sequence[LaplacePosterior], flops: Float[np.ndarray, " candidates"], budget: RunBudget
) -> ExperimentPlan:
    """Choose the runs that minimize the variance of the answers.

    Args:
      flops: cost of every candidate.

    Raises:
      UserError: no candidate is within the budget, or no candidate is informative about the answers.
    """
    if not (flops <= budget.flops).any():
        raise UserError(
            f"The cheapest candidate costs {flops.min():.3g} FLOPs, above the budget of {budget.flops:.3g}; raise the "
            f"budget."
        )
    arrays = posterior_arrays(posteriors)
    relaxed = relax(arrays, flops, budget)
    counts = exchange(arrays, flops, budget, relaxed.counts)
    order = in_order(arrays, counts, flops)
    if not order:
        noise = max(one.noise for one in posteriors)
        raise UserError(
            f"With a noise of {noise:.3g} in log loss, no candidate reduces the uncertainty of the answers; correct "
            f"{argument('noise')}, or raise {argument('flops')}."
        )
    before, afterwards = (deviations(arrays, c) for c in (np.zeros(len(flops)), counts))
    return ExperimentPlan(
        order=tuple(order),
        left=left_after(arrays, order),
        before=before,
        after=afterwards,
        bound=relaxed.bound if len(posteriors) == 1 else 0.0,
        unidentified=tuple(one.unidentified for one in posteriors),
        still_unidentified=tuple(one.unidentified for one in _with(posteriors, arrays, counts)),
    )


def _with(
    posteriors: Sequence[LaplacePosterior], arrays: PosteriorArrays, counts: np.ndarray
) -> list[LaplacePosterior]:
    with float64():
        inverse = [np.asarray(one) for one in sums(arrays, np.asarray(counts, float))["inverse"]]
    return [replace(b, precision=np.linalg.inv(one)) for b, one in zip(posteriors, inverse, strict=True)]


def deviations(arrays: PosteriorArrays, counts: np.ndarray) -> Float[np.ndarray, " answers"]:
    """Return the expected standard deviation of every answer's logarithm after ``counts`` further runs."""
    with float64():
        before = sums(arrays, np.zeros(len(counts)))
        return np.sqrt(np.asarray(variances(arrays, sums(arrays, np.asarray(counts, float)), before)))


def weights(fits: Sequence[FitResult]) -> list[float]:
    """Return the Akaike weights of laws fitted to the same runs: exp(-AICc / 2), normalized to sum to 1.

    See Burnham and Anderson (2002), Section 2.9. AICc accounts for a group's random effect (``information_criteria``).
    The weights are not probabilities that a law is true, because all laws may be wrong.
    """
    scores = np.asarray([fit.aicc for fit in fits])
    if not np.isfinite(scores).any():
        return [1 / len(fits)] * len(fits)
    shares = np.exp(-0.5 * (scores - scores[np.isfinite(scores)].min()))
    return (shares / shares.sum()).tolist()
