"""Find sweeps over training settings in a table, and keep the best run of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.tables.column_names import our_name
from moejax.run_table import COLUMNS, DataFrame
from moejax.wording import listed, some

SETTINGS = (
    *("learning_rate", "batch_tokens", "weight_decay", "schedule", "warmup_tokens", "decay_tokens"),
    "sequence_length",
)
"""Settings that are tuned for a model and its tokens, by our names; others count by ``our_name``."""
MEASURED = tuple(COLUMNS)[list(COLUMNS).index("loss") :]
"""Columns of a run table that are measured in training, and so differ between any two runs."""
NO_SIZES = (*SETTINGS, *MEASURED, "seed")
"""Columns that do not identify a run's model."""
TUNED_SHARE = 0.5
"""Share of the groups of equal inputs in which a setting must vary to count as swept."""


def swept(frame: DataFrame, inputs: Sequence[str]) -> list[str]:
    """Return the settings, by the table's own names, that vary among rows of equal inputs."""
    columns = [str(c) for c in frame.columns if our_name(str(c)) in SETTINGS and str(c) not in inputs]
    repeated = frame[frame.duplicated(list(inputs), keep=False)] if inputs else frame[:0]
    if not columns or not len(repeated):
        return []
    levels = repeated.groupby(list(inputs), sort=False)[columns].nunique(dropna=False)
    varying = [name for name in columns if (levels[name] > 1).mean() >= TUNED_SHARE]
    # A setting under two names (the file's, and ours derived from it) is named once, as in the file.
    theirs = {our_name(name): name for name in reversed(varying) if name not in SETTINGS}
    return [name for name in varying if name not in theirs]


def sweep_note(frame: DataFrame, inputs: Sequence[str], settings: Sequence[str], option: str = "--best-by ") -> str:
    """Return a note that the rows are a sweep over settings, with the option that keeps the best of each."""
    groups = frame.groupby(list(inputs), sort=False).ngroups
    extra = int(frame.duplicated(list(inputs)).sum())
    return (
        f"{extra} of {len(frame)} rows repeat the sizes of an earlier row with another {listed(settings, 'or')}. They "
        f"look like a sweep, and each of them counts as a run. To keep only the best run of each of the {groups} "
        f"groups, pass {option}{','.join(settings)}."
    )


def check_settings(frame: DataFrame, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str) -> None:
    """Check that a table can have sweeps over settings.

    Raises:
      UserError: the table lacks a column, or a column is an input of the law or the loss.
    """
    columns = [str(column) for column in frame.columns]
    for name in settings:
        if name not in columns:
            raise UserError(f"{named} has no column {name} for --best-by; the columns are {', '.join(columns)}.")
        if name in inputs or name == loss:
            raise UserError(
                f"--best-by names {name}, which {'is fitted' if name == loss else 'the law reads'}. Name a setting "
                f"that was tuned at equal {', '.join(inputs) or 'sizes'}, such as learning_rate."
            )


def best_by(
    frame: DataFrame, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the row of the lowest loss among those that differ only in settings, and notes on the dropped rows.

    Rows of several seeds (column ``seed``) are replicates and each keeps its best, unless ``seed`` is a setting.

    Raises:
      UserError: no column distinguishes models, or no row has a loss.
    """
    alike = _alike(frame, inputs, settings)
    if not alike:
        raise UserError(f"{named} has no column that distinguishes models; --best-by keeps the best run of each.")
    losses = run_table.numbers(frame[loss], where=named)
    ranked = frame.assign(**{loss: losses})[np.isfinite(losses)]
    if not len(ranked):
        raise UserError(f"{named} has no {loss} by which --best-by could choose.")
    kept = np.sort(ranked.groupby(alike, sort=False, dropna=False)[loss].idxmin().to_numpy())
    best = frame.loc[kept]
    note = (
        f"Dropped: {len(frame) - len(best)} of {len(frame)} rows, which are not the best by {listed(settings)} of "
        f"their {', '.join(alike)}; {len(best)} are kept."
    )
    if "seed" in settings:
        note += " The best of several seeds is biased low: leave seed out of --best-by."
    return best, (note, *_at_ends(frame, best, alike, settings))


def _alike(frame: DataFrame, inputs: Sequence[str], settings: Sequence[str]) -> list[str]:
    """Return the columns whose equal values form one sweep."""
    return [*inputs, *(["seed"] if "seed" in frame.columns and "seed" not in settings else [])]


def resolution(frame: DataFrame, best: DataFrame, inputs: Sequence[str], settings: Sequence[str], target: str) -> Any:
    """Return the standard deviation of the logarithm of a setting due to the grid, for each best row.

    The true optimum is within one grid step around the best tried value: the step's width divided by √12. The value is
    0 if only one value was tried.

    Args:
      best: rows of ``frame`` kept by ``best_by``.
      target: a setting, or a setting in another unit.
    """
    values = run_table.numbers(frame[target]).to_numpy(np.float64)
    logs = np.log(np.where(values > 0, values, np.nan))
    kept, widths = frame.index.isin(best.index), np.zeros(len(frame))
    for rows in frame.groupby(_alike(frame, inputs, settings), sort=False, dropna=False).indices.values():
        tried = np.unique(logs[rows][np.isfinite(logs[rows])])
        for row in rows[kept[rows] & np.isfinite(logs[rows])] if len(tried) > 1 else ():
            at = int(np.searchsorted(tried, logs[row]))
            widths[row] = np.diff(tried)[max(at - 1, 0) : at + 1].mean()
    return pd.Series(widths / np.sqrt(12), index=frame.index)[kept]


def _at_ends(frame: DataFrame, best: DataFrame, alike: Sequence[str], settings: Sequence[str]) -> tuple[str, ...]:
    """Return a note if best rows are at the edge of the grid, where a better setting may be outside."""
    at_ends = []
    for name in settings:
        values: Any = pd.to_numeric(frame[name], errors="coerce")
        # Seeds have no order.
        if our_name(name) == "seed" or values.isna().any():
            continue
        groups = values.groupby([frame[column] for column in alike], sort=False, dropna=False)
        low, high, own = (one[best.index] for one in (groups.transform("min"), groups.transform("max"), values))
        tried = low < high
        if count := int((tried & ((own == low) | (own == high))).sum()):
            at_ends.append(f"{name} in {count} of {int(tried.sum())}")
    if not at_ends:
        return ()
    return (f"The best is at the edge of the sweep of {some(at_ends)} groups; extend the sweep in that direction.",)
