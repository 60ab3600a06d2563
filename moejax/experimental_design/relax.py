"""The best real numbers of runs: gradient steps towards the best corner of what a budget allows (Frank and Wolfe)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.experimental_design.criterion import PosteriorArrays, share_left, sums
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
    """What may be spent."""

    flops: float
    runs: int
    repeats: int = 1
    """How often one candidate may be trained."""


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """Where the search ended."""

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
