"""``metrics.jsonl``: what was measured while training, each step once however often the training was interrupted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moejax.folder import whole

TRUNK = "trunk"


def branch_name(budget_tokens: int) -> str:
    """Name of the branch that ends at a budget."""
    return f"branch-{budget_tokens}"


class MetricsLog:
    """Appends lines ``{"run": trunk or branch, "step": …, "tokens": …, "loss": …}`` to a file.

    Of several processes one writes; the others only read.
    """

    def __init__(self, path: Path, *, writes: bool = True):
        self._path = path
        self._writes = writes
        self._lines: list[str] = []

    def rewind(self, run: str, step: int) -> None:
        """Forget what was logged of a run after ``step``, the step it goes on from, and any torn last line."""
        if not self._writes:
            return
        kept = [line for line in self.lines() if line["run"] != run or line["step"] <= step]
        with whole(self._path) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def lines(self) -> list[dict[str, Any]]:
        """Everything on disk so far."""
        return list(read(self._path))

    def write(self, run: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one line; it reaches the disk at the next ``flush``."""
        plain = {name: _plain(value) for name, value in values.items()}
        self._lines.append(json.dumps({"run": run, "step": step, **plain}) + "\n")

    def flush(self) -> None:
        """Write out all lines. Called before a checkpoint, so that no step a checkpoint covers is ever missing."""
        if self._writes:
            with self._path.open("a") as file:
                file.write("".join(self._lines))
                file.flush()
                os.fsync(file.fileno())
        self._lines.clear()


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a metrics file; a torn last line, left by a killed process, is passed over."""
    if not path.exists():
        return
    for text in path.read_text().splitlines():
        try:
            yield json.loads(text)
        except json.JSONDecodeError:
            return


def _plain(value: Any) -> Any:
    number = round(float(value), 7) if not isinstance(value, int | str) else value
    return number if not isinstance(number, float) or math.isfinite(number) else str(number)
