"""Rows of several sets as one order: which set each row comes from, by weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moejax.errors import UserError

PERIOD = 10_000
"""Rows after which the pattern repeats; weights are met to one part in this."""


def rows_of_each(weights: Sequence[float], rows: int) -> np.ndarray:
    """Int (sets): how many of the first so many rows each set has."""
    of_row, counts = pattern(weights)
    periods, rest = divmod(rows, PERIOD)
    return periods * counts + np.bincount(of_row[:rest], minlength=len(counts))


def pattern(weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Which set each row of a period comes from; and how many come from each.

    A set with n rows in the period would best have its j-th at (j + ½) / n of it; rows are dealt in that order.

    Raises:
      UserError: a weight above 0 is so small that its set has no row in a period.
    """
    shares = np.array(weights, np.float64) / np.sum(weights)
    counts = np.floor(shares * PERIOD).astype(int)
    # What rounding down left over goes to those that lost most by it.
    counts[np.argsort(counts - shares * PERIOD, kind="stable")[: PERIOD - counts.sum()]] += 1
    lost = np.flatnonzero((counts == 0) & (shares > 0))
    if len(lost):
        raise UserError(
            f"data.mixture: the weight {weights[lost[0]]} is less than one row in {PERIOD:,}; raise it, or leave that "
            f"part out."
        )
    wanted = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    which = np.repeat(np.arange(len(counts)), counts)
    return which[np.argsort(wanted, kind="stable")], counts
