"""Whole runs: taken one by one, then exchanged while an exchange leaves less variance."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from moejax.experimental_design.criterion import PosteriorArrays, share_left, sums, with_run
from moejax.experimental_design.relax import RunBudget
from moejax.float64 import float64

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
    """How often to train each candidate: the best of three beginnings, each improved by exchanges.

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
