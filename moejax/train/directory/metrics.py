"""Write and read ``metrics.jsonl``: measurements during training, one line per step despite interruptions."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moejax.config import convert
from moejax.folder import open_regular, write_text
from moejax.stored import Damaged, parse_line, read_bytes
from moejax.wording import some

if TYPE_CHECKING:
    from moejax.train.directory.loggers import Logger

TRUNK = "trunk"

OF_THE_CLOCK = ("seconds", "tokens_per_second", "mfu", "memory_bytes", "memory_peak_bytes")
"""Fields that differ between trainings with the same numbers."""


_LINE = {"phase": str, "step": int, "tokens": int, "seconds": float, "steps_done": int, "loss": float | str}
"""Fields of every line. Non-finite numbers are text."""

_MEASURED = ("loss", "validation_loss", "mfu", "tokens_per_second")
_COUNTED = ("step", "tokens", "seconds", "steps_done", "skipped_steps", "memory_bytes", "memory_peak_bytes")
"""Numeric fields of a line, if present; counted ones are finite."""

_NOT_FINITE = ("nan", "inf", "-inf")

_MOST = 2.0**63
"""Upper limit of counted fields."""


def number(value: float | str) -> float:
    """Return a number of a line; NaN if it was not finite."""
    return math.nan if isinstance(value, str) else float(value)


def module_name(depth: int) -> str:
    """Return the name of the multi-token-prediction module for the token ``depth`` places after the next."""
    return f"mtp_{depth}"


def branch_name(budget_tokens: int) -> str:
    """Return the name of the branch that ends at a budget."""
    return f"branch-{budget_tokens}"


class MetricsLog:
    """Append-only log of lines ``{"phase": trunk or branch, "step": …, "tokens": …, "loss": …}`` in a file.

    One process writes; the others only read. ``loggers`` receive the lines that are on disk, and ``log`` receives
    messages for the user.
    """

    def __init__(
        self,
        path: Path,
        *,
        writes: bool = True,
        loggers: Sequence[Logger] = (),
        log: Callable[[str], None] = lambda text: None,
    ):
        self._path = path
        self._writes = writes
        self._loggers = loggers
        self._log = log
        self._lines: list[dict[str, Any]] = []

    def show_in(self, loggers: Sequence[Logger]) -> None:
        """Pass lines to ``loggers`` too, once they are on disk."""
        self._loggers = loggers

    def rewind(self, phase: str, step: int, *, start: int = 0, every: int = 0) -> int:
        """Remove the lines of a phase after ``step``, from which it resumes, and any torn last line.

        Damaged lines and duplicates of a step are omitted, with a message. If none of the last ``every`` steps has a
        line, a message reports it; the phase begins at ``start``.

        Return the last logged step of the phase; 0 if there is none.
        """
        lines, damaged = _lines(_bytes(self._path), whole=True)
        reached = max((line["step"] for line in lines if line["phase"] == phase), default=0)
        if self._writes:
            by_step: dict[tuple[str, int], dict[str, Any]] = {}
            for line in lines:
                by_step.setdefault((line["phase"], line["step"]), line)
            kept = [line for line in by_step.values() if line["phase"] != phase or line["step"] <= step]
            last = max((line["step"] for line in kept if line["phase"] == phase), default=start)
            if damaged:
                self._log(f"{_no_lines(self._path, damaged)}; they are left out of it, and what they told is lost.")
            if len(by_step) < len(lines):
                self._log(f"{self._path} had {len(lines) - len(by_step)} lines of steps that others tell of; only the "
                          f"first of each step is kept.")  # fmt: skip
            if every and step - last >= every:
                self._log(f"{self._path} has no line of the steps {last + 1} to {step} of {phase}, which are trained; "
                          f"what it told of them is lost.")  # fmt: skip
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))
            for logger in self._loggers:
                logger.begin(phase, [line for line in kept if line["phase"] == phase])
        return reached

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines on disk.

        Raises:
          Damaged: a line is invalid.
        """
        return read(self._path)

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one line; it is written to disk at the next ``flush``."""
        plain = {name: _plain(value) for name, value in values.items()}
        self._lines.append({"phase": phase, "step": step, **plain})

    def flush(self) -> None:
        """Write all lines. Call this before a checkpoint, so that the log has every step that a checkpoint covers."""
        if self._writes:
            _append(self._path, "".join(json.dumps(line) + "\n" for line in self._lines).encode())
            for logger in self._loggers:
                for line in self._lines:
                    logger.write(line)
        self._lines.clear()


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file; an empty list if there is no file.

    Raises:
      Damaged: a line is invalid.
    """
    return parse_lines(_bytes(path), path, whole=True)


def _bytes(path: Path) -> bytes:
    return read_bytes(path, remedy="remove it, or bring back a copy") if path.exists() else b""


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Return at most ``count`` complete lines from the end of a metrics file, reading only its end.

    Raises:
      Damaged: a line that was read is invalid.
    """
    try:
        if (descriptor := open_regular(path, os.O_RDONLY)) is None:
            raise Damaged(f"{path} is no regular file; remove it, or bring back a copy.")
        with os.fdopen(descriptor, "rb") as file:
            end, size = file.seek(0, os.SEEK_END), 4096
            while True:
                file.seek(max(0, end - size))
                lines = parse_lines(file.read(), path, whole=size >= end)
                if len(lines) >= count or size >= end:
                    return lines[-count:]
                size *= 4
    except OSError:
        return []


def parse_lines(content: bytes, where: object, *, whole: bool) -> list[dict[str, Any]]:
    """Parse the complete lines of the end of a metrics file, or of a ``whole`` one. The text before the first line
    break may be a partial line, and the text after the last line break is torn.

    Raises:
      Damaged: a line is invalid.
    """
    found, damaged = _lines(content, whole=whole)
    if damaged:
        raise Damaged(
            f"{_no_lines(where, damaged)}; bring back a copy, or remove them: a training that goes on leaves them out."
        )
    return found


def _lines(content: bytes, *, whole: bool) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the parsed lines and the damaged ones."""
    read = [(line, _line(line)) for line in content.split(b"\n")[0 if whole else 1 : -1]]
    return [parsed for _, parsed in read if parsed is not None], [line for line, parsed in read if parsed is None]


def _line(content: bytes) -> dict[str, Any] | None:
    """Parse a line; None if any displayed field is not as ``MetricsLog`` writes it."""
    line = parse_line(content, _LINE)
    if line is None or not re.fullmatch(rf"{TRUNK}|{branch_name(0)[:-1]}[0-9]{{1,18}}", line["phase"]):
        return None
    measured = all(_is_number(line[name]) for name in _MEASURED if name in line)
    counted = all(_is_number(line[name], most=_MOST, texts=()) for name in _COUNTED if name in line)
    return line if measured and counted and _are_layers(line.get("layers", {"layer": []})) else None


def _is_number(value: object, most: float = sys.float_info.max, texts: Sequence[str] = _NOT_FINITE) -> bool:
    if isinstance(value, str):
        return value in texts
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= most


def _are_layers(value: object) -> bool:
    """Return whether the value has a list for every statistic, with an entry per mixture layer."""
    try:
        layers = convert(dict[str, list], value, "layers")
    except ValueError:
        return False
    return (
        len({len(values) for values in layers.values()}) == 1
        and all(_is_number(layer, texts=()) or _is_module(layer) for layer in layers.pop("layer", [None]))
        and all(_is_number(value) for values in layers.values() for value in values)
    )


def _is_module(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"mtp_\d+", value, re.ASCII))


def _no_lines(where: object, damaged: Sequence[bytes]) -> str:
    shown = some([repr(line[:40].decode(errors="replace")) for line in damaged], most=3)
    return f"{where} has {len(damaged)} lines that are no lines of a log: {shown}"


def _append(path: Path, content: bytes) -> None:
    """Append all of the bytes, or none if the disk is full, so that the next append begins a line."""
    with path.open("ab") as file:
        end = file.seek(0, os.SEEK_END)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.truncate(path, end)
            raise


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    # Nine significant digits identify a float32 uniquely.
    number = float(f"{value:.9g}") if not isinstance(value, int | str) else value
    return number if not isinstance(number, float) or math.isfinite(number) else str(number)
