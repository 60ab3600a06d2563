"""From rows to batches, through Grain: which tokens a step sees is a function of the seed and the step alone.

The rows of each set are shuffled anew each epoch, sets are interleaved by weight, and step t takes rows t·B …
(t+1)·B - 1 of that endless order. A process reads its own rows of every batch, so the order does not depend on how
many there are, and a training goes on elsewhere with any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from moejax.data.mixture import Mixed
from moejax.data.rows import Rows


class ProcessRows:
    """The rows of each global batch that one process reads, out of an endless order of rows."""

    def __init__(self, rows: Any, batch: int, process: int, processes: int):
        self._rows = rows
        self._batch = batch
        self._process = process
        self._local = batch // processes

    def __len__(self) -> int:
        return len(self._rows) // self._batch * self._local

    def __getitem__(self, index: Any) -> Any:
        step, row = divmod(int(index), self._local)
        return self._rows[step * self._batch + self._process * self._local + row]


def ordered(sets: Sequence[Rows], weights: Sequence[float], seed: int) -> Any:
    """The endless order of rows. A set by itself is shuffled by the seed; several, each by one derived from it."""
    if len(sets) == 1:
        return grain.MapDataset.source(sets[0]).seed(seed).shuffle().repeat()
    seeds = np.random.SeedSequence(seed).generate_state(len(sets)).tolist()
    orders = [grain.MapDataset.source(rows).seed(own).shuffle().repeat() for rows, own in zip(sets, seeds, strict=True)]
    return Mixed(orders, weights)


def batches(
    sets: Sequence[Rows],
    weights: Sequence[float],
    *,
    batch: int,
    seed: int,
    start: int = 0,
    process: int = 0,
    processes: int = 1,
) -> grain.DatasetIterator:
    """Endless batches of this process from step ``start`` on: dicts of Int32 (batch / processes, length + 1).

    The iterator's state is the number of the next step, so it is the same in every process, and one saved by any
    number of processes serves any other.

    Raises:
      ValueError: the processes do not divide the batch, or a set is shorter than its rows of one batch.
    """
    if batch % processes:
        raise ValueError(
            f"A batch of {batch} sequences cannot be shared by {processes} processes; make batch_tokens / "
            f"sequence_length a multiple of {processes}."
        )
    for rows, weight in zip(sets, weights, strict=True):
        share = batch * weight / sum(weights)
        if len(rows) < share:
            raise ValueError(
                f"The training text has {len(rows)} rows of this sequence_length, fewer than the {share:g} of one "
                f"batch; lower batch_tokens or sequence_length{', or its weight' if len(sets) > 1 else ''}."
            )
    mine = grain.MapDataset.source(ProcessRows(ordered(sets, weights, seed), batch, process, processes))
    found = iter(mine.batch(batch // processes, drop_remainder=True).to_iter_dataset(_READING))
    if start:
        found.set_state({**found.get_state(), "next_index": start})
    return found


_READING = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)
