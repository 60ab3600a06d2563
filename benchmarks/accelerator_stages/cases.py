"""What a stage measures, case by case, written to ``rows.jsonl`` as soon as it is known. Imports no JAX.

A row is a JSON object with ``run`` (Unix time at which the run began), ``stage`` and ``case``, and either ``begun``, or
what was measured, or ``error`` or ``left_out``: why nothing was. A process that dies leaves a case that was begun and
has no end; whoever started it writes that end, and starts it again for the cases behind.
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
"""Exit status of a process whose device answers no more; what it has begun is written as an error."""
NO_TIME = "no time was left"
"""Why a case is left out that could have been measured."""

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Add a row, and have it on the disk before going on."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """All rows; a line that was cut off, or is no row, is none."""
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
    """Rows that are the end of a case."""
    return (row for row in rows if "begun" not in row)


def is_measured(row: Row) -> bool:
    """Whether a row holds what was measured."""
    return not {"begun", "error", "left_out"} & row.keys()


@dataclass(frozen=True)
class Cases:
    """The cases of one stage in one process."""

    stage: str
    out: Path
    run: int
    deadline: float
    """Unix time after which no case is begun."""
    is_dry: bool = False
    """Whether this is a rehearsal: tiny shapes, on a CPU."""
    case: str = ""
    """Of a stage with a process for each case, the one of this process."""
    is_alive: Callable[[], bool] = lambda: True
    """Whether the device still answers after an error."""

    @property
    def path(self) -> Path:
        return self.out / ROWS

    def others(self, stage: str) -> dict[str, Row]:
        """What this run has measured in another stage, by case."""
        rows = ended(read(self.path))
        return {r["case"]: r for r in rows if r["run"] == self.run and r["stage"] == stage and is_measured(r)}

    def measure(self, case: str, function: Callable[[], Row]) -> None:
        """Write what the function returns, or why it could not; nothing if this run has an end of the case already."""
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
            self.write(case, error=f"{found['error']} (the device answered no more)")
            os._exit(DEVICE_LOST)
        self.write(case, **found, took_seconds=round(time.time() - began, 2))

    def write(self, case: str, **values: Any) -> None:
        append(self.path, {"run": self.run, "stage": self.stage, "case": case, **values})


class LeftOut(Exception):
    """Nothing can be measured here, and that is no error; the text says why."""


def sentence(error: Exception) -> str:
    """An error in one line of at most 300 characters."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]
