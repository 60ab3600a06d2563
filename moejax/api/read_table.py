"""Read the runs that functions of ``moejax`` take: a ``ReadRuns``, a file or a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.say import say

RunTable = str | Path | pd.DataFrame | ReadRuns
"""The result of ``moejax.read_runs``, or a file or DataFrame to read."""


def read_table(
    runs: RunTable | Mapping[str, float], law: str | type | Sequence[str], reading: Mapping[str, Any]
) -> ReadRuns:
    """Return a ``ReadRuns`` unchanged. Read other tables with the options of ``moejax.read_runs``, and print notes.

    Raises:
      UserError: the table cannot be read, or options are given for runs that have already been read.
    """
    if isinstance(runs, ReadRuns):
        if reading.keys() - {"also_told_apart_by"}:
            raise UserError(f"{next(iter(reading))} is an option for reading tables; pass it to moejax.read_runs.")
        return runs
    read = read_runs(runs, law, **reading)
    if read.notes:
        say(*read.notes)
    return read


def read_of(fit: FitResult, runs: RunTable) -> ReadRuns:
    """Return the runs of a fit as ``ReadRuns``; a file or DataFrame is read with the options of the fit."""
    return runs if isinstance(runs, ReadRuns) else read_table(runs, type(fit.law), fit.reading)


def runs_of(fit: FitResult, runs: RunTable) -> Runs:
    """Return the runs of a fit; a file or DataFrame is read with the options of the fit."""
    return read_of(fit, runs).runs
