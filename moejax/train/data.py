"""From tokens to batches, through Grain: which tokens a step sees is a function of the seed and the step alone.

Tokens are cut into windows, the windows are shuffled anew each epoch, and step t takes windows t·B … (t+1)·B - 1 of
that endless order. A process reads its own rows of every batch, so the order does not depend on how many there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grain
import numpy as np
from jaxtyping import UInt16

from moejax.train import corpus


class Windows:
    """Overlapping-by-one windows of a token array, as a Grain source: row i is tokens i·T … (i+1)·T inclusive."""

    def __init__(self, tokens: UInt16[np.ndarray, " tokens"], length: int):
        self._tokens = tokens
        self._length = length

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // self._length

    def __getitem__(self, index: Any) -> UInt16[np.ndarray, " length_plus_1"]:
        start = int(index) * self._length
        return np.asarray(self._tokens[start : start + self._length + 1])


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


def training_batches(
    folder: Path, *, batch: int, length: int, seed: int, start: int = 0, process: int = 0, processes: int = 1
) -> grain.DatasetIterator:
    """Endless batches of this process, each UInt16 (batch / processes, length + 1), from step ``start`` on.

    Raises:
      ValueError: the corpus is shorter than one batch, or the processes do not divide the batch.
    """
    windows = Windows(corpus.tokens(folder, "train"), length)
    if batch % processes:
        raise ValueError(
            f"A batch of {batch} sequences cannot be shared by {processes} processes; make batch_tokens / "
            f"sequence_length a multiple of {processes}."
        )
    if len(windows) < batch:
        raise ValueError(
            f"The training corpus has {len(windows)} windows of {length} tokens, fewer than one batch of {batch}; "
            f"lower batch_tokens or sequence_length."
        )
    rows = grain.MapDataset.source(windows).seed(seed).shuffle().repeat()
    mine = grain.MapDataset.source(ProcessRows(rows, batch, process, processes))
    batches = iter(mine.batch(batch // processes, drop_remainder=True).to_iter_dataset(_READING))
    if start:
        batches.set_state({**batches.get_state(), "next_index": start})
    return batches


def validation_windows(folder: Path, *, length: int, windows: int) -> UInt16[np.ndarray, "windows length_plus_1"]:
    """A fixed set of windows spread evenly over the validation side; fewer if it is shorter."""
    source = Windows(corpus.tokens(folder, "validation"), length)
    if not len(source):
        raise ValueError(f"The validation corpus is shorter than one window of {length} tokens; lower sequence_length.")
    chosen = np.unique(np.linspace(0, len(source) - 1, min(windows, len(source))).astype(int))
    return np.stack([source[i] for i in chosen])


_READING = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)
