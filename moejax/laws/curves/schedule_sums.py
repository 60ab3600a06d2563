"""Compute schedule features for loss-curve laws: the sum of rates, and each drop of the rate with the rates after it.

A schedule is an array of learning rates; ``rates[i]`` belongs to the update from step i to step i + 1. A ``Design`` has
these columns after a number of updates:

- ``rate_sum``: sum of the rates so far, including the warm-up;
- ``peak_rate``, ``updates``: highest rate so far and number of updates, which no law reads;
- ``drop``: decrease of the rate at each update, rates[i-1] - rates[i]; negative for a rise, as in the warm-up;
- ``drop_rate``: rate after the drop; ``drop_sum``: sum of rates from this update on; ``drop_steps``: number of updates
  since the drop, inclusive.

``sums_at`` returns an entry for every update; it runs in JAX and is differentiable in the rates. ``sums_of_curve``
approximates these columns at many steps with few entries.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from moejax.laws.design import Design

Points = dict[str, np.ndarray]
"""Columns by name: Float (points), or (points, drops)."""

REACH = ("rate_sum", "peak_rate", "updates")
"""Columns compared with the fitted schedules to report extrapolation, even if the law does not read them."""
LOWEST = 1e-4
"""Fraction of the highest rate below which rates are treated as equal, because laws use negative powers of them."""
BINS = 16
"""Number of distinct ages of drops, with which published laws are accurate to 3e-5 nats over 24,000 steps."""


def sums_at(rates: jax.Array | np.ndarray) -> Design:
    """Return the columns that loss-curve laws read after all updates.

    Args:
      rates: Float (updates).
    """
    rates = jnp.asarray(rates)
    sums = jnp.cumsum(rates)
    return Design(
        columns={
            "rate_sum": sums[-1],
            "drop": jnp.concatenate([rates[:1] * 0, rates[:-1] - rates[1:]]),
            "drop_rate": jnp.maximum(rates, LOWEST * jnp.max(rates)),
            "drop_sum": sums[-1] - sums + rates,
            "drop_steps": jnp.arange(len(rates), 0, -1, dtype=rates.dtype),
        }
    )


def sums_of_curve(rates: ArrayLike, steps: ArrayLike, bins: int = BINS) -> Points:
    """Return the columns after each of several numbers of updates, with drops and rises binned into ``bins`` ages.

    Two equal drops represent the drops of a bin: one standard deviation of ``drop_sum`` below and above its mean. Other
    columns follow from their regression on ``drop_sum``. The width of a bin is proportional to its age. Sums of
    functions that are smooth within a bin are exact to third order.

    Args:
      rates: Float (updates).
      steps: Int (points), numbers of updates.
    """
    rates, steps = np.asarray(rates, np.float64), np.asarray(steps)[:, None]
    sums, changes = np.concatenate([[0.0], np.cumsum(rates)]), np.concatenate([[0.0], -np.diff(rates)])
    updates = np.arange(len(rates), dtype=np.float64)
    # Ages at which bins end: one update at first, then a constant ratio.
    ages = np.unique(np.round(np.geomspace(1, max(len(rates), 2), bins + 1)).astype(int))
    ends = np.maximum(steps - np.concatenate([[0], ages]), 0)
    parts = []
    for sign in (1, -1):
        drop = np.maximum(sign * changes, 0.0)
        own = _between(drop, ends)
        mean = _Means(drop, own, ends)
        at = mean(sums[:-1])
        deviation = np.sqrt(np.maximum(mean(sums[:-1] ** 2) - at**2, 0.0))

        def halves(
            values: np.ndarray, mean: _Means = mean, at: np.ndarray = at, deviation: np.ndarray = deviation
        ) -> np.ndarray:
            spread = deviation > 1e-9 * sums[-1]
            middle, along = mean(values), mean(values * sums[:-1])
            slope = np.where(spread, (along - middle * at) / np.where(spread, deviation, 1.0), 0.0)
            return np.concatenate([middle - slope, middle + slope], axis=1)

        parts.append(
            {
                "drop": sign * np.concatenate([own, own], axis=1) / 2,
                "drop_rate": np.exp(halves(np.log(np.maximum(rates, LOWEST * rates.max())))),
                "drop_sum": np.maximum(sums[steps] - halves(sums[:-1]), 0.0),
                "drop_steps": np.maximum(steps - halves(updates), 0.0),
            }
        )
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
    return {**reach_at(rates, steps[:, 0]), **joined}


def reach_at(rates: ArrayLike, steps: ArrayLike) -> Points:
    """Return the columns of ``REACH`` after several numbers of updates."""
    rates, steps = np.asarray(rates, np.float64), np.asarray(steps)
    so_far = [np.concatenate([[0.0], of.accumulate(rates)])[steps] for of in (np.add, np.maximum)]
    return dict(zip(REACH, (*so_far, steps.astype(np.float64)), strict=True))


class _Means:
    """Means of per-update values over bins, weighted by drops; in a bin without drops, the value in its middle."""

    def __init__(self, drop: np.ndarray, own: np.ndarray, ends: np.ndarray):
        self.drop, self.own, self.ends = drop, own, ends
        self.there = own > 1e-12 * max(float(drop.sum()), 1e-300)
        self.middle = np.clip((ends[:, :-1] + ends[:, 1:]) // 2, 0, len(drop) - 1)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        means = _between(self.drop * values, self.ends) / np.where(self.there, self.own, 1.0)
        return np.where(self.there, means, values[self.middle])


def _between(values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[ends[:, :-1]] - total[ends[:, 1:]]
