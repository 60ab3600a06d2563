"""The whole answer: what to train next, in which order, and how certain the answer will then be.

First the best real numbers of runs, by gradient steps towards the best corner of what a budget allows (Frank and
Wolfe); then whole runs, taken one by one, and exchanged while an exchange leaves less variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from moejax.errors import UserError
from moejax.experimental_design.criterion import (
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

STEPS = 60
LINE_SEARCH_POINTS = 12
"""Points of a line search."""
PRICES = 60
"""Halvings of the price of FLOPs: as far as its digits go."""
CLOSE = 0.005
"""The search ends when the variance can fall by no more than this share."""


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """Limits of FLOPs, of runs, and of repeats of one candidate."""

    flops: float
    runs: int
    repeats: int = 1
    """Largest number of trainings of one candidate."""


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """The end point of the search."""

    counts: Float[np.ndarray, " candidates"]
    left: float
    """Share of the variance that is left."""
    bound: float
    """No runs within the budget leave less, as long as the share is convex in their numbers: under one law."""


def relax(known: PosteriorArrays, cost: Float[np.ndarray, " candidates"], budget: RunBudget) -> Relaxed:
    """Numbers of runs, not whole, that leave the least variance within a budget."""
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
            # The share along the way there, at a dozen places and then around the best of them.
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
    """The allowed numbers of runs along which the share falls most.

    A linear program with two limits: at a price of FLOPs the best runs are those of steepest slope less price, and the
    price is searched at which they cost what there is.
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
def _slope(known: PosteriorArrays, counts: Any) -> tuple[Any, Any]:
    before = sums(known, jnp.zeros_like(counts))
    return jax.value_and_grad(lambda n: share_left(known, sums(known, n), before))(counts)


@jax.jit
def _along(known: PosteriorArrays, counts: Any, end: Any, ways: Any) -> Any:
    before = sums(known, jnp.zeros_like(counts))
    return jax.vmap(lambda way: share_left(known, sums(known, counts + way * (end - counts)), before))(ways)


ENOUGH = 1e-4
"""An exchange that lowers the share by less than this part of it is not made."""
SWEEPS = 4

Counts = Int[np.ndarray, " candidates"]


def exchange(
    known: PosteriorArrays,
    cost: Float[np.ndarray, " candidates"],
    budget: RunBudget,
    relaxed: Any,
    *,
    sweeps: int = SWEEPS,
) -> Counts:
    """Return the number of trainings of each candidate: the best of three starts, each improved by exchanges.

    The beginnings are the relaxed numbers, rounded up from .7 on, and nothing, filled by what helps most per FLOP, or
    by what helps most.
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
    """As many of the runs as the budget allows, cheapest first."""
    kept, counts = np.zeros_like(counts), np.minimum(counts, budget.repeats)
    for i in np.argsort(cost):
        for _ in range(counts[i]):
            kept[i] += 1
            if kept @ cost > budget.flops or kept.sum() > budget.runs:
                kept[i] -= 1
                return kept
    return kept


def _allowed(counts: Counts, cost: np.ndarray, budget: RunBudget) -> np.ndarray:
    """Which candidates could be trained once more."""
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
    """The runs, each time the one that tells most per FLOP after those before it."""
    order, chosen = [], np.zeros(len(counts))
    with float64():
        while (chosen < counts).any():
            now, after = (np.asarray(part) for part in _with_each(known, chosen))
            gain = np.where(chosen < counts, (now - after) / cost, -np.inf)
            order.append(int(np.argmax(gain)))
            chosen[order[-1]] += 1
    return order


def left_after(known: PosteriorArrays, order: list[int]) -> Float[np.ndarray, " runs"]:
    """The share of the variance that is left after each of the runs in turn."""
    counts, shares = np.zeros(len(known["laws"][0]["slopes"])), []
    with float64():
        for one in order:
            counts[one] += 1
            shares.append(float(_left(known, counts)))
    return np.asarray(shares)


@jax.jit
def _left(known: PosteriorArrays, counts: Any) -> Any:
    counts = jnp.asarray(counts, float)
    return share_left(known, sums(known, counts), sums(known, jnp.zeros_like(counts)))


@jax.jit
def _with_each(known: PosteriorArrays, counts: Any) -> tuple[Any, Any]:
    """The share that is left, and that with every candidate once more."""
    before, now = sums(known, jnp.zeros_like(counts)), sums(known, counts)
    each = jax.vmap(lambda one: share_left(known, with_run(known, now, one), before))
    return share_left(known, now, before), each(jnp.arange(len(counts)))


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """Runs to train, those first that tell most per FLOP."""

    order: tuple[int, ...]
    """Numbers of candidates; a number comes again where a run is repeated."""
    left: Float[np.ndarray, " runs"]
    """Share of the answers' variance that is left after each of them."""
    before: Float[np.ndarray, " answers"]
    """Standard deviation of every answer's logarithm, of several laws with their disagreement."""
    after: Float[np.ndarray, " answers"]
    """Expected, with all runs."""
    bound: float
    """No runs of this budget leave a smaller share of the variance; 0 of several laws, where nothing bounds it."""
    unidentified: tuple[tuple[bool, ...], ...]
    """Per law, which answers the runs so far leave to the prior."""
    still_unidentified: tuple[tuple[bool, ...], ...]
    """The same with the new runs."""

    @property
    def efficiency(self) -> float:
        """The bound over what is left: 1 is the best there is."""
        return self.bound / float(self.left[-1]) if len(self.left) else 0.0


def choose_runs(
    posteriors: Sequence[LaplacePosterior], flops: Float[np.ndarray, " candidates"], budget: RunBudget
) -> ExperimentPlan:
    """The runs that leave least of the answers' variance.

    Args:
      flops: what every candidate costs.

    Raises:
      UserError: no candidate is within the budget, or none tells anything of the answers.
    """
    if not (flops <= budget.flops).any():
        raise UserError(
            f"The cheapest candidate costs {flops.min():.3g} FLOPs and the budget is {budget.flops:.3g}; raise --flops."
        )
    arrays = posterior_arrays(posteriors)
    relaxed = relax(arrays, flops, budget)
    counts = exchange(arrays, flops, budget, relaxed.counts)
    order = in_order(arrays, counts, flops)
    if not order:
        noise = max(one.noise for one in posteriors)
        raise UserError(
            f"No candidate makes the answers more certain at a noise of {noise:.3g} in log loss; correct --noise, or "
            f"raise --flops."
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
    """The posteriors after further runs."""
    with float64():
        inverse = [np.asarray(one) for one in sums(arrays, np.asarray(counts, float))["inverse"]]
    return [replace(b, precision=np.linalg.inv(one)) for b, one in zip(posteriors, inverse, strict=True)]


def deviations(arrays: PosteriorArrays, counts: np.ndarray) -> Float[np.ndarray, " answers"]:
    """Expected standard deviation of every answer's logarithm after further runs."""
    with float64():
        before = sums(arrays, np.zeros(len(counts)))
        return np.sqrt(np.asarray(variances(arrays, sums(arrays, np.asarray(counts, float)), before)))


def weights(fits: Sequence[FitResult]) -> list[float]:
    """Akaike's weights of laws fitted to the same runs: exp(-AICc / 2), divided by the sum over these laws.

    Burnham and Anderson (2002), section 2.9. They take a law's AICc for its evidence, which counts a group's shared
    luck once (``information_criteria``); they are not probabilities that a law is true, as all may be wrong.
    """
    scores = np.asarray([fit.aicc for fit in fits])
    if not np.isfinite(scores).any():
        return [1 / len(fits)] * len(fits)
    shares = np.exp(-0.5 * (scores - scores[np.isfinite(scores)].min()))
    return (shares / shares.sum()).tolist()
