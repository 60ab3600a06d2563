"""Features of a schedule for laws of loss curves: the sum of its rates, and every drop of the rate with later rates.

A schedule is the learning rate of every update, ``rates[i]`` of the one that turns step i into i + 1. After some
updates a law reads, as columns of a ``Design``:

- ``rate_sum``: the sum of the rates so far, warm-up included; beside it, for no law to read, ``peak_rate`` and
  ``updates``, the highest rate so far and their number;
- ``drop``: by how much each update lowered the rate, rates[i-1] - rates[i]; below 0 where it rose, as in the warm-up;
- ``drop_rate``: the rate that it was lowered to; ``drop_sum``: the sum of rates from there on; ``drop_steps``: updates
  since, the lowered one included.

``sums_at`` has an entry for every update, in JAX, and is differentiable in the rates. ``sums_of_curve`` has the same at
many steps with few entries.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from moejax.laws.design import Design

Points = dict[str, np.ndarray]
"""Columns by name: Float (points), or (points, drops)."""

REACH = ("rate_sum", "peak_rate", "updates")
"""Columns in any of which a schedule may lie beyond those that a law was fitted to, whatever the law reads."""
LOWEST = 1e-4
"""Share of the highest rate below which rates are not told apart: they stand to a negative power in a law."""
BINS = 16
"""Ages of drops that are told apart: of so many, published laws are right to 3e-5 nats over 24,000 steps."""


def sums_at(rates: Any) -> Design:
    """Return the columns that laws of curves read after each of some updates.

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


def sums_of_curve(rates: Any, steps: Any, bins: int = BINS) -> Points:
    """The columns after each of some numbers of updates, of drops and rises of ``bins`` ages.

    Drops of about the same age are two equal ones, a standard deviation of their ``drop_sum`` to either side of its
    mean; what else is read of them goes along its regression on that. Sums of functions that are smooth within a bin,
    whose width is a share of its age, are right to third order.

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

        def halves(values: Any, mean: Any = mean, at: Any = at, deviation: Any = deviation) -> Any:
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


def reach_at(rates: Any, steps: Any) -> Points:
    """The columns of ``REACH`` after some numbers of updates."""
    rates, steps = np.asarray(rates, np.float64), np.asarray(steps)
    so_far = [np.concatenate([[0.0], of.accumulate(rates)])[steps] for of in (np.add, np.maximum)]
    return dict(zip(REACH, (*so_far, steps.astype(np.float64)), strict=True))


class _Means:
    """Means of values of every update over bins, weighted by drops; in a bin without drops, the value in its middle."""

    def __init__(self, drop: Any, own: Any, ends: Any):
        self.drop, self.own, self.ends = drop, own, ends
        self.there = own > 1e-12 * max(float(drop.sum()), 1e-300)
        self.middle = np.clip((ends[:, :-1] + ends[:, 1:]) // 2, 0, len(drop) - 1)

    def __call__(self, values: Any) -> Any:
        means = _between(self.drop * values, self.ends) / np.where(self.there, self.own, 1.0)
        return np.where(self.there, means, values[self.middle])


def _between(values: Any, ends: Any) -> Any:
    """Sums over bins, from each end to the one before it."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[ends[:, :-1]] - total[ends[:, 1:]]
