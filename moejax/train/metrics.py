"""``metrics.jsonl``: what was measured while training, each step once however often the training was interrupted."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moejax.folder import whole

if TYPE_CHECKING:
    from moejax.train.sinks import Sink

TRUNK = "trunk"

OF_THE_CLOCK = ("seconds", "tokens_per_second", "mfu", "memory_bytes", "memory_peak_bytes")
"""What a line says that another training of the same numbers would say differently."""


def branch_name(budget_tokens: int) -> str:
    """Name of the branch that ends at a budget."""
    return f"branch-{budget_tokens}"


class MetricsLog:
    """Appends lines ``{"run": trunk or branch, "step": …, "tokens": …, "loss": …}`` to a file.

    Of several processes one writes; the others only read. ``sinks`` are given what is on disk.
    """

    def __init__(self, path: Path, *, writes: bool = True, sinks: Sequence[Sink] = ()):
        self._path = path
        self._writes = writes
        self._sinks = sinks
        self._lines: list[dict[str, Any]] = []

    def rewind(self, run: str, step: int) -> int:
        """Forget what was logged of a run after ``step``, the step it goes on from, and any torn last line.

        Returns the last step that had been logged of the run; 0 if none.
        """
        lines = self.lines()
        reached = max((line["step"] for line in lines if line["run"] == run), default=0)
        if self._writes:
            kept = [line for line in lines if line["run"] != run or line["step"] <= step]
            with whole(self._path) as partial:
                partial.write_text("".join(json.dumps(line) + "\n" for line in kept))
            for sink in self._sinks:
                sink.begin(run, [line for line in kept if line["run"] == run])
        return reached

    def lines(self) -> list[dict[str, Any]]:
        """Everything on disk so far."""
        return read(self._path)

    def write(self, run: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one line; it reaches the disk at the next ``flush``."""
        plain = {name: _plain(value) for name, value in values.items()}
        self._lines.append({"run": run, "step": step, **plain})

    def flush(self) -> None:
        """Write out all lines. Called before a checkpoint, so that no step a checkpoint covers is ever missing."""
        if self._writes:
            with self._path.open("a") as file:
                file.write("".join(json.dumps(line) + "\n" for line in self._lines))
                file.flush()
                os.fsync(file.fileno())
            for sink in self._sinks:
                for line in self._lines:
                    sink.write(line)
        self._lines.clear()


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics file; none if there is no file."""
    return parse_lines(path.read_bytes(), whole=True) if path.exists() else []


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """At most ``count`` whole lines from the end of a metrics file, read from there."""
    try:
        with path.open("rb") as file:
            end, size = file.seek(0, os.SEEK_END), 4096
            while True:
                file.seek(max(0, end - size))
                lines = parse_lines(file.read(), whole=size >= end)
                if len(lines) >= count or size >= end:
                    return lines[-count:]
                size *= 4
    except OSError:
        return []


def parse_lines(content: bytes, *, whole: bool) -> list[dict[str, Any]]:
    """The whole lines of the end of a metrics file, or of a ``whole`` one: what stands before the first line break may
    be the end of a line, and what stands after the last is torn."""
    found = []
    for line in content.split(b"\n")[0 if whole else 1 : -1]:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    number = round(float(value), 7) if not isinstance(value, int | str) else value
    return number if not isinstance(number, float) or math.isfinite(number) else str(number)
