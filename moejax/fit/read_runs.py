"""The door of a fit: from any table of runs to the runs of a law, every doubt said and no row dropped in silence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from moejax import run_table
from moejax.fit.runs import Runs, runs_from
from moejax.laws.design import FIELDS, Design

SIZES = ("params_total", "params_active", "tokens", "flops", "model_dim", "num_layers", "expert_hidden")
"""Fields that are above 0 in every run."""
SHOWN = 5
"""Rows that a sentence names one by one."""


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
    drop_invalid: bool = False,
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
      drop_invalid: leave out, with a note, rows whose loss or sizes cannot be; else they are an error.

    Raises:
      ValueError: a column is missing or unknown, holds no numbers, or holds numbers that cannot be.
    """
    frame = run_table.read_as_it_is(path) if isinstance(path, (str, Path)) else path
    frame = frame.reset_index(drop=True)
    named = str(path) if isinstance(path, (str, Path)) else "The table"
    frame, notes = _select(_mapped(frame, mapping or {}, named), where, named)
    inputs = law if isinstance(law, tuple) else law.inputs
    needed = (*inputs, loss)
    _require(frame, needed, named)
    for name in {*needed, *FIELDS} & set(frame.columns):
        frame[name] = run_table.numbers(frame[name], where=named)
    frame, dropped = _sound(frame, needed, loss, named, drop_invalid)
    known = [name for name in FIELDS if name in frame.columns and np.isfinite(frame[name]).all()]
    design = Design(**{name: frame[name].to_numpy(np.float64) for name in known})
    label = group or ("group" if "group" in frame.columns else None)
    if group:
        _require(frame, (group,), named)
    runs = runs_from(design, frame[loss].to_numpy(np.float64), group=None if label is None else list(frame[label]))
    return ReadRuns(
        runs=runs,
        rows=frame.index.to_numpy() + 1,
        frame=frame.reset_index(drop=True),
        notes=(*notes, *dropped, *_repeats(frame, list(inputs) or known, loss)),
    )


def _mapped(frame: Any, mapping: Mapping[str, str], named: str) -> Any:
    computed = {}
    for name, expression in mapping.items():
        if expression in frame.columns:
            computed[name] = frame[expression]
            continue
        try:
            computed[name] = frame.eval(expression, engine="python", local_dict={}, global_dict={})
        except Exception as error:
            raise ValueError(
                f"{named}: {name}={expression} cannot be computed ({error}). Write a column, or arithmetic on columns "
                f"(a name with spaces between `backticks`); the columns are {', '.join(map(str, frame.columns))}."
            ) from error
    return frame.assign(**computed)


def _select(frame: Any, where: Sequence[str], named: str) -> tuple[Any, tuple[str, ...]]:
    notes = []
    for condition in where:
        before = len(frame)
        try:
            frame = frame.query(condition, engine="python", local_dict={}, global_dict={})
        except Exception as error:
            raise ValueError(
                f"{named}: the condition {condition!r} cannot be applied ({error}); "
                f"the columns are {', '.join(map(str, frame.columns))}."
            ) from error
        notes.append(f"{len(frame)} of {before} rows meet {condition!r}.")
        if not len(frame):
            raise ValueError(f"{named}: no row meets {condition!r}.")
    return frame.copy(), tuple(notes)


def _require(frame: Any, names: Sequence[str], named: str) -> None:
    columns = [str(column) for column in frame.columns]
    for name in names:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=3, cutoff=0.5)
            meaning = run_table.COLUMNS[name].meaning if name in run_table.COLUMNS else "wanted"
            hint = f"nearest are {', '.join(near)}" if near else f"the columns are {', '.join(columns)}"
            raise ValueError(f"{named} has no column {name} ({meaning}); {hint}. Name it with --map {name}=COLUMN.")


def _sound(frame: Any, needed: Sequence[str], loss: str, named: str, drop: bool) -> tuple[Any, tuple[str, ...]]:
    """The rows that can be, or an error about those that cannot."""
    faults = {f"{name} is empty or not finite": ~np.isfinite(frame[name]) for name in needed}
    positive = [name for name in (*SIZES, loss) if name in frame.columns]
    faults |= {f"{name} is not above 0": frame[name] <= 0 for name in positive}
    if {"params_active", "params_total"} <= set(frame.columns):
        # Counts as printed in papers are rounded to a few digits.
        faults["params_active exceeds params_total"] = frame["params_active"] > 1.005 * frame["params_total"]
    notes = []
    bad = np.zeros(len(frame), bool)
    for what, rows in faults.items():
        if (found := frame.index[np.asarray(rows)]).size:
            shown = ", ".join(str(row + 1) for row in found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
            notes.append(f"{named}: {what} in {len(found)} of {len(frame)} rows (row {shown})")
            bad |= np.asarray(rows)
    if notes and not drop:
        raise ValueError("; ".join(notes) + ". Correct the rows, select others with --where, or pass --drop-invalid.")
    if bad.all():
        raise ValueError("; ".join(notes) + ". No row is left.")
    return frame[~bad], tuple(f"Dropped: {note}." for note in notes)


def _repeats(frame: Any, inputs: Sequence[str], loss: str) -> tuple[str, ...]:
    same = int(frame.duplicated([*inputs, loss]).sum())
    replicates = int(frame.duplicated(inputs).sum()) - same
    notes = []
    if same:
        notes.append(f"{same} rows repeat another's sizes and loss exactly; each is kept and counts as a run.")
    if replicates:
        notes.append(f"{replicates} rows repeat another's sizes with another loss; they are kept as replicates.")
    return tuple(notes)
