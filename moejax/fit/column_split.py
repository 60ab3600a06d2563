"""Runs held out by any column of their table: the largest in it, those from a value on, those that equal one, or each
of its values in turn."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.holdout import Split, at_least, each_group, split_of
from moejax.fit.read_runs import ReadRuns
from moejax.laws.design import FIELDS, Design
from moejax.quantities import parse

DERIVED = tuple(name for name, member in vars(Design).items() if isinstance(member, property))
"""What a Design works out of its fields, such as ``sparsity`` and ``granularity``."""


def split_by(read: ReadRuns, text: str) -> Split:
    """The runs that ``text`` holds out.

    ``tokens`` is the largest fifth of its distinct values, ``sparsity:0.98`` what is at least that, and
    ``router_type=S-Base`` what equals it. The name is a column of the table, else a quantity of ``Design``.

    Raises:
      UserError: there is no such column, it holds no numbers where they are compared, or one side would be empty.
    """
    if _knows(read, text):
        return at_least(read.runs, text, _numbers(read, text))
    for sign, taken in (("=", _equal), (":", _from)):
        name, found, value = text.partition(sign)
        if found and _knows(read, name):
            return taken(read, name, value.strip())
    raise UserError(_unknown(read, text.partition("=" if "=" in text else ":")[0]))


def each_value(read: ReadRuns, column: str) -> Iterator[Split]:
    """Every value of a column held out once; ``group`` is every architecture, if the table has no such column.

    Raises:
      UserError: there is no such column, or it has one value only.
    """
    if column == "group" and column not in read.frame.columns:
        yield from each_group(read.runs)
        return
    if not _knows(read, column):
        raise UserError(_unknown(read, column))
    values = read.frame[column] if column in read.frame.columns else _numbers(read, column)
    for value in dict.fromkeys(v for v, weight in zip(values, read.runs.weight, strict=True) if weight > 0):
        shown = f"{value:.6g}" if isinstance(value, float) else value
        yield split_of(read.runs, f"{column} = {shown}", np.asarray([v == value for v in values]))


def _from(read: ReadRuns, name: str, value: str) -> Split:
    return at_least(read.runs, name, _numbers(read, name), parse(value))


def _equal(read: ReadRuns, name: str, value: str) -> Split:
    if name in read.frame.columns:
        same = np.asarray([str(found) == value for found in read.frame[name]])
        if same.any():
            return split_of(read.runs, f"{name} = {value}", same)
    try:
        wanted, values = parse(value), _numbers(read, name)
    except ValueError:
        known = ", ".join(map(str, dict.fromkeys(read.frame[name]))) if name in read.frame.columns else "numbers"
        raise UserError(f"No run has {name} = {value}; {name} has {known}.") from None
    # A derived quantity such as 1 - 1/E is rounded; a printed one has a few digits.
    return split_of(read.runs, f"{name} = {value}", np.isclose(values, wanted, rtol=1e-6, atol=0))


def _knows(read: ReadRuns, name: str) -> bool:
    return name in read.frame.columns or (name in (*FIELDS, *DERIVED) and _derived(read, name) is not None)


def _derived(read: ReadRuns, name: str) -> Any:
    """A quantity of the runs' designs; None if what it is worked out of is not known."""
    try:
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            value = getattr(read.runs.design, name)
            return None if value is None else np.asarray(value, np.float64)
    except TypeError:
        return None


def _numbers(read: ReadRuns, name: str) -> np.ndarray:
    if name not in read.frame.columns:
        return _derived(read, name)
    values = run_table.numbers(read.frame[name], where="The table").to_numpy(np.float64)
    if np.isnan(values).any():
        raise UserError(f"{name} is empty in {np.isnan(values).sum()} rows; hold out by a column that is full.")
    return values


def _unknown(read: ReadRuns, name: str) -> str:
    columns = [str(column) for column in read.frame.columns]
    derived = [n for n in (*FIELDS, *DERIVED) if _derived(read, n) is not None and n not in columns]
    near = difflib.get_close_matches(name, columns + derived, n=3, cutoff=0.5)
    hint = f"nearest are {', '.join(near)}" if near else f"they have {', '.join(columns + derived)}"
    return f"The runs have no {name} to hold out by; {hint}. Write NAME, NAME:LEAST or NAME=VALUE."
