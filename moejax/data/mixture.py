"""Endless rows of several sets, interleaved by weight: which set a row comes from depends on its number alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from moejax.errors import UserError

PERIOD = 10_000
"""Rows after which the pattern repeats; weights are met to one part in this."""


class Mixed:
    """Row k of the mixture. Of any number of rows in a row, each set has its share, to within two rows."""

    def __init__(self, sets: Sequence[Any], weights: Sequence[float]):
        self._sets = sets
        self._of_row, self._counts = pattern(weights)
        self._rank = np.zeros(PERIOD, np.int64)
        for number, count in enumerate(self._counts):
            self._rank[self._of_row == number] = np.arange(count)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: Any) -> Any:
        period, row = divmod(int(index), PERIOD)
        number = self._of_row[row]
        return self._sets[number][int(period * self._counts[number] + self._rank[row])]


def pattern(weights: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Of each row of a period, which set it comes from; and how many come from each.

    A set with n rows in the period would best have its j-th at (j + ½) / n of it; rows are dealt in that order.

    Raises:
      UserError: a weight is so small that its set has no row in a period.
    """
    shares = np.array(weights, np.float64) / np.sum(weights)
    counts = np.floor(shares * PERIOD).astype(int)
    # What rounding down left over goes to those that lost most by it.
    counts[np.argsort(counts - shares * PERIOD, kind="stable")[: PERIOD - counts.sum()]] += 1
    if not counts.all():
        raise UserError(
            f"data.mixture: the weight {weights[int(np.argmin(counts))]} is less than one row in {PERIOD:,}; raise "
            f"it, or leave that part out."
        )
    wanted = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    which = np.repeat(np.arange(len(counts)), counts)
    return which[np.argsort(wanted, kind="stable")], counts
