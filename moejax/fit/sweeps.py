"""Sweeps inside a table: runs alike in all that a law reads, trained at several learning rates or batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.column_names import our_name
from moejax.wording import listed, some

SETTINGS = (
    *("learning_rate", "batch_tokens", "weight_decay", "schedule", "warmup_tokens", "decay_tokens"),
    "sequence_length",
)
"""What is tuned for a model and its tokens, in our names; a column of another name counts by ``our_name``."""

TUNED_SHARE = 0.5
"""Share of the groups of equal inputs in which a setting must vary to be what the table sweeps."""


def swept(frame: Any, inputs: Sequence[str]) -> list[str]:
    """The settings, by the table's own names, that vary among rows whose inputs are equal."""
    columns = [str(c) for c in frame.columns if our_name(str(c)) in SETTINGS and str(c) not in inputs]
    repeated = frame[frame.duplicated(list(inputs), keep=False)] if inputs else frame[:0]
    if not columns or not len(repeated):
        return []
    levels = repeated.groupby(list(inputs), sort=False)[columns].nunique(dropna=False)
    found = [name for name in columns if (levels[name] > 1).mean() >= TUNED_SHARE]
    # One setting under two names (theirs, and ours that is read from it) is named once, as the file has it.
    theirs = {our_name(name): name for name in reversed(found) if name not in SETTINGS}
    return [name for name in found if name not in theirs]


def sentence(frame: Any, inputs: Sequence[str], settings: Sequence[str]) -> str:
    """What a table that sweeps says of itself, and the remedy."""
    groups = frame.groupby(list(inputs), sort=False).ngroups
    extra = int(frame.duplicated(list(inputs)).sum())
    option = f"--best-by {','.join(settings)}"
    return (
        f"{extra} of {len(frame)} rows repeat an earlier row's sizes with another {listed(settings, 'or')}: a sweep, "
        f"not replicates. A law of sizes is of the best of each of the {groups} groups; {option} keeps that and drops "
        f"the rest. As it is, every setting counts as a run."
    )


def best_by(
    frame: Any, inputs: Sequence[str], loss: str, settings: Sequence[str], named: str
) -> tuple[Any, tuple[str, ...]]:
    """Of rows that differ only in settings, the one of the lowest loss; and what that leaves out, in words.

    Rows of several seeds (column ``seed``) are replicates and each keeps its best, unless ``seed`` is named.

    Raises:
      UserError: the table lacks a column, or one is what the law reads or the loss.
    """
    columns = [str(column) for column in frame.columns]
    for name in settings:
        if name not in columns:
            raise UserError(f"{named} has no column {name} for --best-by; the columns are {', '.join(columns)}.")
        if name in inputs or name == loss:
            raise UserError(
                f"--best-by names {name}, which {'is fitted' if name == loss else 'the law reads'}; name what was "
                f"tuned at equal {', '.join(inputs) or 'sizes'}, such as learning_rate."
            )
    alike = [*inputs, *(["seed"] if "seed" in columns and "seed" not in settings else [])]
    if not alike:
        raise UserError(f"{named} has no column that tells models apart; --best-by keeps the best run of each.")
    losses = run_table.numbers(frame[loss], where=named)
    ranked = frame.assign(**{loss: losses})[np.isfinite(losses)]
    if not len(ranked):
        raise UserError(f"{named} has no {loss} by which --best-by could choose.")
    kept = np.sort(ranked.groupby(alike, sort=False, dropna=False)[loss].idxmin().to_numpy())
    best = frame.loc[kept]
    notes = [
        f"Dropped: {len(frame) - len(best)} of {len(frame)} rows, which are not the best by {listed(settings)} of "
        f"their {', '.join(alike)}; {len(best)} are kept."
    ]
    return best, (*notes, *_at_ends(frame, best, alike, settings))


def _at_ends(frame: Any, best: Any, alike: Sequence[str], settings: Sequence[str]) -> tuple[str, ...]:
    """Where the best lies at an end of what was tried, which may hide a better one."""
    found = []
    for name in settings:
        try:
            values = frame[name].astype("float64")
        except (TypeError, ValueError):
            continue
        ends = frame[list(alike)].assign(low=values, high=values).groupby(list(alike), sort=False, dropna=False)
        ends = ends.agg({"low": "min", "high": "max"}).reset_index()
        both = best[list(alike)].assign(at=values[best.index]).merge(ends, on=list(alike))
        tried = both["low"] < both["high"]
        count = int((tried & ((both["at"] == both["low"]) | (both["at"] == both["high"]))).sum())
        if count:
            found.append(f"{name} in {count} of {int(tried.sum())}")
    if not found:
        return ()
    return (f"The best is at an end of the sweep of {some(found)} groups: a better setting may lie beyond.",)
