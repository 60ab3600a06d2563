"""Make batches from rows with Grain. The tokens of a step depend only on the seed and the step.

The rows of each data set are reshuffled in every epoch, and data sets are interleaved by weight. From this endless
order, step t takes the rows t·B to (t+1)·B - 1, where B is the batch size in rows. The weights may change at one row;
each set then continues in its own order. A process reads only the rows of its devices, so the order does not depend on
the number of processes, and a run can resume with a different number.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import grain
import numpy as np

from moejax.data.mixtures import PERIOD, pattern, rows_of_each
from moejax.data.rows import Rows
from moejax.errors import UserError

BATCHES_AHEAD = 16
"""Number of batches to prefetch; at least one per thread."""


@dataclass(frozen=True)
class DecayWeights:
    """Weights that replace the initial weights from row ``first_row`` on."""

    weights: Sequence[float]
    first_row: int


class Mixed:
    """A mixture of sets, indexed by row. In any range of rows, each set's number of rows differs from its share by at
    most two.

    With ``decay``, only rows from ``decay.first_row`` on may be read. The rows before it are mixed by ``weights``, and
    each set continues after its last one of these rows.
    """

    def __init__(self, sets: Sequence[Any], weights: Sequence[float], decay: DecayWeights | None = None):
        self._sets = sets
        self._of_row, self._counts = pattern(decay.weights if decay else weights)
        self._rank = np.zeros(PERIOD, np.int64)
        for number, count in enumerate(self._counts):
            self._rank[self._of_row == number] = np.arange(count)
        self._skipped = np.zeros(len(sets), np.int64)
        if decay:
            self._skipped = rows_of_each(weights, decay.first_row) - rows_of_each(decay.weights, decay.first_row)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: SupportsIndex) -> Any:
        period, row = divmod(int(index), PERIOD)
        number = self._of_row[row]
        return self._sets[number][int(period * self._counts[number] + self._rank[row] + self._skipped[number])]


class ProcessRows:
    """The rows of each global batch that one process reads; batches begin at row ``first`` of an endless order."""

    def __init__(self, rows: Any, batch: int, mine: Sequence[int], first: int = 0):
        self._rows = rows
        self._batch = batch
        self._mine = mine
        self._first = first

    def __len__(self) -> int:
        return (len(self._rows) - self._first) // self._batch * len(self._mine)

    def __getitem__(self, index: SupportsIndex) -> Any:
        step, row = divmod(int(index), len(self._mine))
        return self._rows[self._first + step * self._batch + int(self._mine[row])]


def ordered(sets: Sequence[Rows], weights: Sequence[float], seed: int, decay: DecayWeights | None = None) -> Any:
    """Return the endless order of rows. Sets of weight 0 do not affect the order of the other sets.

    If only one set has a positive weight, ``seed`` shuffles it; otherwise, each set has a seed derived from ``seed``.
    """
    mixed, others = ([n for n, weight in enumerate(weights) if bool(weight) == is_mixed] for is_mixed in (True, False))
    derived = np.random.SeedSequence(seed).generate_state(len(sets)).tolist()
    seeds = dict(zip([*mixed, *others], derived, strict=True)) | ({mixed[0]: seed} if len(mixed) == 1 else {})
    orders = [
        grain.MapDataset.source(rows).seed(seeds[n]).shuffle().repeat() if read else None
        for n, (rows, read) in enumerate(zip(sets, decay.weights if decay else weights, strict=True))
    ]
    return orders[0] if len(orders) == 1 else Mixed(orders, weights, decay)


def batches(
    sets: Sequence[Rows],
    weights: Sequence[float],
    *,
    batch: int,
    seed: int,
    first_row: int = 0,
    start: int = 0,
    mine: Sequence[int] | None = None,
    threads: int = 1,
    decay: DecayWeights | None = None,
) -> grain.DatasetIterator:
    """Return an endless iterator over the batches from step ``start`` on: dicts of Int32 (rows, length + 1).

    Batches hold all rows of the global batch, or only the rows with indices ``mine``, which this process reads. Step 0
    begins at row ``first_row`` of the order, because earlier rows may have been read in smaller batches. With
    ``decay``, rows before its first row must not be requested. The iterator's state is the number of the next step.
    This state is the same in every process and can be restored with any number of processes. ``threads`` threads
    prefetch one batch each without changing the order.

    Raises:
      UserError: a set has fewer rows than its share of one batch.
    """
    now = decay.weights if decay else weights
    for rows, weight in zip(sets, now, strict=True):
        share = batch * weight / sum(now)
        if len(rows) < share:
            raise UserError(
                f"The training text has {len(rows)} rows of this sequence_length, fewer than the {share:g} rows "
                f"that one batch needs; lower batch_tokens or "
                f"sequence_length{', or the weight of this text' if len(sets) > 1 else ''}."
            )
    mine = range(batch) if mine is None else mine
    rows = grain.MapDataset.source(ProcessRows(ordered(sets, weights, seed, decay), batch, mine, first_row))
    reading = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(threads, BATCHES_AHEAD))
    iterator = iter(rows.batch(len(mine), drop_remainder=True).to_iter_dataset(reading))
    if start:
        iterator.set_state({**iterator.get_state(), "next_index": start})
    return iterator
