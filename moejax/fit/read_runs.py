"""The door of a fit: from any table of runs to the runs of a law, every doubt said and no row dropped in silence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moejax import run_table
from moejax.fit.doubts import doubts, duplicates, rows_in_words
from moejax.fit.runs import Runs, runs_from
from moejax.laws.design import FIELDS, Design
from moejax.laws.door import POSITIVE


@dataclass(frozen=True, kw_only=True)
class ReadRuns:
    """Runs, and what a reader must know about how they were read."""

    runs: Runs
    rows: np.ndarray
    """For every run, its row in the file, counted from 1 below the header."""
    frame: Any
    """The rows themselves, a pandas DataFrame, for splits by any column."""
    notes: tuple[str, ...]


def read_runs(
    path: Any,
    law: Any,
    *,
    mapping: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    loss: str = "loss",
    group: str | None = None,
    weight: str | None = None,
    drop_invalid: bool = False,
    drop_duplicates: bool = False,
) -> ReadRuns:
    """Runs of a law from a file.

    Args:
      path: a CSV, Parquet or JSON-lines file, or a pandas DataFrame.
      law: a law, or the names of the Design fields that must be there.
      mapping: our column by theirs, or by arithmetic on theirs: ``{"tokens": "step * 520000"}``.
      where: conditions on the columns that a row must meet, as pandas' ``query`` reads them.
      loss: the column that is fitted.
      group: a column whose equal values belong together; ``group`` if the table has it, else what differs only in
        tokens and FLOPs.
      weight: a column that says how often each row counts; 0 keeps a row out. Every row counts once if not given.
      drop_invalid: leave out, with a note, rows whose loss, sizes or weight cannot be; else they are an error.
      drop_duplicates: leave out, with a note, rows that repeat an earlier row's sizes and loss; else they are kept,
        with a note: a rounded table has them by chance.

    Raises:
      ValueError: a column is missing or unknown, holds no numbers, or holds numbers that cannot be.
    """
    frame = run_table.read_as_it_is(path) if isinstance(path, (str, Path)) else path
    frame = frame.reset_index(drop=True)
    named = str(path) if isinstance(path, (str, Path)) else "The table"
    frame, notes = select(mapped(frame, mapping or {}, named), where, named)
    inputs = law if isinstance(law, tuple) else law.inputs
    needed = (*inputs, loss, *([] if weight is None else [weight]))
    _require(frame, needed, named)
    frame, texts = _numeric(frame, [name for name in dict.fromkeys((*needed, *FIELDS)) if name in frame.columns])
    frame, dropped = _sound(frame, needed, loss, weight, texts, named, drop_invalid)
    notes += tuple(f"Column {name} is not read: {texts[name]}." for name in texts if name not in needed)
    known = [name for name in FIELDS if name in frame.columns and np.isfinite(frame[name]).all()]
    told_apart_by = list(inputs) or known
    if drop_duplicates:
        frame, repeated = _once(frame, told_apart_by, loss)
        dropped += repeated
    design = Design(**{name: frame[name].to_numpy(np.float64) for name in known})
    label = group or ("group" if "group" in frame.columns else None)
    if group:
        _require(frame, (group,), named)
    runs = runs_from(
        design,
        frame[loss].to_numpy(np.float64),
        weight=None if weight is None else frame[weight].to_numpy(np.float64),
        group=None if label is None else list(frame[label]),
    )
    used = [name for name in (label, weight) if name is not None]
    return ReadRuns(
        runs=runs,
        rows=frame.index.to_numpy() + 1,
        frame=frame.reset_index(drop=True),
        notes=(*notes, *dropped, *_weighed(runs, weight), *doubts(frame, told_apart_by, loss, used)),
    )


def mapped(frame: Any, mapping: Mapping[str, str], named: str) -> Any:
    """The table with our columns added, by theirs or by arithmetic on theirs.

    Raises:
      ValueError: one cannot be computed.
    """
    computed, numeric = {}, None
    for name, expression in mapping.items():
        if expression in frame.columns:
            computed[name] = frame[expression]
            continue
        try:
            numeric = numeric if numeric is not None else _as_numbers(frame)
            computed[name] = numeric.eval(expression, engine="python", local_dict={}, global_dict={})
        except Exception as error:
            near = difflib.get_close_matches(expression, map(str, frame.columns), n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise ValueError(
                f"{named}: {name}={expression} cannot be computed ({error}). {hint}Write a column, or arithmetic on "
                f"columns (a name with spaces between `backticks`); the columns are "
                f"{', '.join(map(str, frame.columns))}."
            ) from error
    return frame.assign(**computed)


def select(frame: Any, where: Sequence[str], named: str) -> tuple[Any, tuple[str, ...]]:
    """The rows that meet all conditions, and how many those are in words.

    Raises:
      ValueError: a condition cannot be applied, or no row meets it.
    """
    notes = []
    for condition in where:
        before = len(frame)
        try:
            frame = _query(frame, condition)
        except Exception as error:
            raise ValueError(
                f"{named}: the condition {condition!r} cannot be applied ({error}); "
                f"the columns are {', '.join(map(str, frame.columns))}."
            ) from error
        notes.append(f"{len(frame)} of {before} rows meet {condition!r}.")
        if not len(frame):
            raise ValueError(f"{named}: no row meets {condition!r}.")
    return frame.copy(), tuple(notes)


def _query(frame: Any, condition: str) -> Any:
    """The rows that meet a condition, which may compare text as it is or numbers as people write them."""
    try:
        return frame.query(condition, engine="python", local_dict={}, global_dict={})
    except TypeError:
        kept = _as_numbers(frame).query(condition, engine="python", local_dict={}, global_dict={}).index
        return frame.loc[kept]


def _as_numbers(frame: Any) -> Any:
    """The same table, with every column of text that holds only numbers (48M, 1e20) as numbers."""
    found = {}
    for name in frame.columns:
        try:
            found[name] = run_table.numbers(frame[name])
        except ValueError:
            continue
    return frame.assign(**{str(name): values for name, values in found.items()})


def _require(frame: Any, names: Sequence[str], named: str) -> None:
    columns = [str(column) for column in frame.columns]
    missing = [name for name in dict.fromkeys(names) if name not in columns]
    if not missing:
        return
    meanings = {name: run_table.COLUMNS[name].meaning if name in run_table.COLUMNS else "wanted" for name in missing}
    near = dict.fromkeys(c for name in missing for c in difflib.get_close_matches(name, columns, n=3, cutoff=0.5))
    hint = f"nearest are {', '.join(near)}" if near and len(missing) == 1 else f"the columns are {', '.join(columns)}"
    raise ValueError(
        f"{named} has no column {', none '.join(f'{name} ({meaning})' for name, meaning in meanings.items())}; {hint}. "
        f"Say which is which: {' '.join(f'--map {name}=COLUMN' for name in missing)}."
    )


def _numeric(frame: Any, names: Sequence[str]) -> tuple[Any, dict[str, str]]:
    """The table with some columns as numbers, text in them as NaN, and what that text is by column."""
    found, texts = {}, {}
    for name in names:
        try:
            found[name] = run_table.numbers(frame[name])
        except ValueError:
            wrong = np.array([not _is_number(value) for value in frame[name]])
            found[name] = run_table.numbers(frame[name].where(~wrong))
            texts[name] = f"it holds {frame[name][wrong].iloc[0]!r} in {rows_in_words(frame.index[wrong])}"
    return frame.assign(**found), texts


def _is_number(value: Any) -> bool:
    try:
        run_table.numbers(pd.Series([value]))
    except ValueError:
        return False
    return True


def _sound(
    frame: Any,
    needed: Sequence[str],
    loss: str,
    weight: str | None,
    texts: Mapping[str, str],
    named: str,
    drop: bool,
) -> tuple[Any, tuple[str, ...]]:
    """The rows that can be, or an error about those that cannot."""
    faults = {
        f"{name} is empty or not finite" + (f" ({texts[name]})" if name in texts else ""): ~np.isfinite(frame[name])
        for name in needed
    }
    positive = [name for name in (*POSITIVE, loss) if name in frame.columns]
    faults |= {f"{name} is not above 0": frame[name] <= 0 for name in positive}
    if {"params_active", "params_total"} <= set(frame.columns):
        # Counts as printed in papers are rounded to a few digits.
        faults["params_active exceeds params_total"] = frame["params_active"] > 1.005 * frame["params_total"]
    if weight is not None:
        faults[f"the weight {weight} is below 0"] = frame[weight] < 0
    notes = []
    bad = np.zeros(len(frame), bool)
    for what, rows in faults.items():
        if (found := frame.index[np.asarray(rows)]).size:
            notes.append(f"{named}: {what} in {len(found)} of {len(frame)} rows ({rows_in_words(found)})")
            bad |= np.asarray(rows)
    if notes and not drop:
        raise ValueError("; ".join(notes) + ". Correct the rows, select others with --where, or pass --drop-invalid.")
    if bad.all():
        raise ValueError("; ".join(notes) + ". No row is left.")
    return frame[~bad], tuple(f"Dropped: {note}." for note in notes)


def _once(frame: Any, told_apart_by: Sequence[str], loss: str) -> tuple[Any, tuple[str, ...]]:
    """Every run once, and which rows that leaves out."""
    again = duplicates(frame, told_apart_by, loss)
    rows = frame.index[again]
    note = f"Dropped: {rows_in_words(rows)} ({len(rows)} in all), which repeat an earlier row's sizes and loss exactly."
    return frame[~again], (note,) if len(rows) else ()


def _weighed(runs: Runs, weight: str | None) -> tuple[str, ...]:
    """What weights keep out, or an error if that is everything."""
    out = int((runs.weight == 0).sum())
    if out == len(runs):
        raise ValueError(f"The weight {weight} is 0 in every row; give at least one row a weight above 0.")
    return (f"{out} of {len(runs)} rows have a {weight} of 0 and take no part.",) if out else ()
