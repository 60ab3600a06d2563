"""Which runs spent the same training compute: published budgets are met to a few per cent, not to the digit."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

SAME = 1.1
"""Runs whose FLOPs follow each other within this factor, in order, spent one budget."""


def budgets(flops: Float[np.ndarray, " runs"]) -> tuple[Int[np.ndarray, " runs"], Float[np.ndarray, " budgets"]]:
    """The number of every run's budget, from the smallest, and the budgets: geometric means of what was spent."""
    order = np.argsort(flops, kind="stable")
    steps = np.diff(np.log(flops[order]), prepend=np.log(flops[order[0]])) > np.log(SAME)
    number = np.empty(len(flops), np.int64)
    number[order] = np.cumsum(steps)
    middles = [np.exp(np.mean(np.log(flops[number == n]))) for n in range(number.max() + 1)]
    return number, np.asarray(middles, np.float64)
