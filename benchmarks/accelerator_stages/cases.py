"""Record the measurements of a stage, case by case, in ``rows.jsonl``. Imports no JAX.

A row is a JSON object with ``run`` (the Unix time at which the run began), ``stage``, ``case``, and either ``begun``,
the measurements, or the reason for their absence as ``error`` or ``left_out``. If a process dies, its current case has
a ``begun`` row without a final row; the parent process writes the final row and starts a new process for the remaining
cases.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = "rows.jsonl"
DEVICE_LOST = 70
"""Exit status of a process whose device stopped responding; its current case is recorded as an error."""
NO_TIME = "no time was left"
"""Reason for leaving out a case because of the time limit."""

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Append a row and flush it to disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """Read all rows; truncated or invalid lines are ignored."""
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and {"run", "stage", "case"} <= row.keys():
            rows.append(row)
    return rows


def ended(rows: list[Row]) -> Iterator[Row]:
    """Return the final rows of cases."""
    return (row for row in rows if "begun" not in row)


def is_measured(row: Row) -> bool:
    """Return whether a row contains measurements."""
    return not {"begun", "error", "left_out"} & row.keys()


@dataclass(frozen=True)
class Cases:
    """The cases of one stage that run in one process."""

    stage: str
    out: Path
    run: int
    deadline: float
    """Unix time after which no case starts."""
    is_dry: bool = False
    """True for a rehearsal with tiny shapes on a CPU."""
    case: str = ""
    """The case of this process, in a stage with one process per case."""
    is_alive: Callable[[], bool] = lambda: True
    """A function that returns whether the device still responds after an error."""

    @property
    def path(self) -> Path:
        return self.out / ROWS

    def others(self, stage: str) -> dict[str, Row]:
        """Return this run's rows of another stage, by case."""
        rows = ended(read(self.path))
        return {r["case"]: r for r in rows if r["run"] == self.run and r["stage"] == stage and is_measured(r)}

    def measure(self, case: str, function: Callable[[], Row]) -> None:
        """Record the function's result or its error; do nothing if this run already has a final row of the case."""
        here = (self.run, self.stage, case)
        if any((row["run"], row["stage"], row["case"]) == here for row in ended(read(self.path))):
            return
        if time.time() > self.deadline:
            self.write(case, left_out=NO_TIME)
            return
        began = time.time()
        self.write(case, begun=began)
        try:
            found = function()
        except LeftOut as reason:
            found = {"left_out": str(reason)}
        except Exception as error:
            traceback.print_exc()
            found = {"error": sentence(error)}
        if "error" in found and not self.is_alive():
            self.write(case, error=f"{found['error']} (the device stopped responding)")
            os._exit(DEVICE_LOST)
        self.write(case, **found, took_seconds=round(time.time() - began, 2))

    def write(self, case: str, **values: Any) -> None:
        append(self.path, {"run": self.run, "stage": self.stage, "case": case, **values})


class LeftOut(Exception):
    """Raised if a case cannot be measured here, which is not an error; the text is the reason."""


def sentence(error: Exception) -> str:
    """Return an error as one line of at most 300 characters."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
