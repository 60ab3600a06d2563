"""Interleave the rows of several sets by weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moejax.errors import UserError

PERIOD = 10_000
"""Rows after which the pattern repeats; weights are exact to one part in this number."""


def rows_of_each(weights: Sequence[float], rows: int) -> np.ndarray:
    """Return Int (sets): the number of rows of each set among the first ``rows`` rows."""
    of_row, counts = pattern(weights)
    periods, rest = divmod(rows, PERIOD)
    return periods * counts + np.bincount(of_row[:rest], minlength=len(counts))


def pattern(weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the set of each row of a period, and the number of rows of each set.

    A set with n rows per period ideally has its j-th row at (j + ½) / n of it; rows are sorted by these positions.

    Raises:
      UserError: a weight above 0 is so small that its set has no row in a period.
    """
    shares = np.array(weights, np.float64) / np.sum(weights)
    counts = np.floor(shares * PERIOD).astype(int)
    # The rows lost by rounding down go to the sets that lost most.
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
