"""What a reader should know of a table whose rows can all be: repeats, columns that never vary, names nearly right."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np

from moejax.laws.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import FIELDS
from moejax.run_table import COLUMNS

SHOWN = 5
"""Rows that a sentence names one by one."""
COUNTED_ALIKE = 1.05
"""FLOPs this near to 6 N D are the same count."""
ALIKE = 0.85
"""How much (as difflib counts) a column's name resembles ours when it is taken for a slip."""


def rows_in_words(rows: Any) -> str:
    """Rows by their number in the file, counted from 1 below the header."""
    numbers = [str(row + 1) for row in rows]
    return f"row{'s' * (len(numbers) > 1)} {', '.join(numbers[:SHOWN])}" + (", …" if len(numbers) > SHOWN else "")


def doubts(frame: Any, inputs: Sequence[str], loss: str, used: Sequence[str] = ()) -> tuple[str, ...]:
    """Sentences about a table, its rows by their index.

    Args:
      inputs: the columns that set a run's prediction.
      used: columns that are read besides ``inputs`` and ``loss``.
    """
    return (
        *_repeats(frame, inputs, loss),
        *_never_vary(frame, inputs),
        *_counted_otherwise(frame),
        *_slips(frame, {*inputs, loss, *used}),
    )


def duplicates(frame: Any, inputs: Sequence[str], loss: str) -> Any:
    """Which rows repeat an earlier row's sizes and loss to the digit: most often one run that was listed twice.

    Without sizes that is none: equal losses say nothing.
    """
    if not inputs:
        return np.zeros(len(frame), bool)
    return frame.duplicated([*inputs, loss])


def _repeats(frame: Any, inputs: Sequence[str], loss: str) -> tuple[str, ...]:
    if not inputs:
        return ()
    same = duplicates(frame, inputs, loss)
    replicates = frame.duplicated(list(inputs)) & ~same
    notes = []
    if same.any():
        notes.append(
            f"{rows_in_words(frame.index[same])} ({same.sum()} in all) repeat an earlier row's sizes and loss "
            f"exactly; each is kept and counts as a run. If they are one run listed twice, pass --drop-duplicates."
        )
    if replicates.any():
        notes.append(
            f"{rows_in_words(frame.index[replicates])} ({replicates.sum()} in all) repeat an earlier row's sizes with "
            f"another loss; they are kept as replicates."
        )
    return tuple(note[0].upper() + note[1:] for note in notes)


def _never_vary(frame: Any, inputs: Sequence[str]) -> tuple[str, ...]:
    if len(frame) < 2:
        return ()
    flat = [name for name in inputs if np.ptp(frame[name].to_numpy(np.float64)) == 0]
    if not flat:
        return ()
    return (f"The same in all rows: {', '.join(flat)}. A coefficient that only this sets apart cannot be found.",)


def _counted_otherwise(frame: Any) -> tuple[str, ...]:
    """Whether the table's FLOPs are not those by which decisions split a budget."""
    if not {"flops", "params_active", "tokens"} <= set(frame.columns):
        return ()
    size = frame["params_active"].to_numpy(np.float64) * frame["tokens"].to_numpy(np.float64)
    ratio = frame["flops"].to_numpy(np.float64) / (FLOPS_PER_PARAM_AND_TOKEN * size)
    low, high = np.nanmin(ratio), np.nanmax(ratio)
    if not np.isfinite([low, high]).all() or (low > 1 / COUNTED_ALIKE and high < COUNTED_ALIKE):
        return ()
    return (
        f"flops are {low:.2f} to {high:.2f} times 6 · params_active · tokens. Laws that read sizes and tokens split a "
        f"budget, and say how far it lies beyond the runs, by the latter.",
    )


def _slips(frame: Any, used: set[str]) -> tuple[str, ...]:
    missing = [name for name in FIELDS if name not in frame.columns]
    notes = []
    for column in map(str, frame.columns):
        if column not in used and column not in COLUMNS and column not in FIELDS:
            near = difflib.get_close_matches(column, missing, n=1, cutoff=ALIKE)
            notes += [f"Column {column} is not read. If it is {name}, say --map {name}={column}." for name in near]
    return tuple(notes)
