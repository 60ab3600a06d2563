"""``metrics.jsonl``: what was measured while training, each step once however often the training was interrupted."""

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
    from moejax.train.loggers import Logger

TRUNK = "trunk"

OF_THE_CLOCK = ("seconds", "tokens_per_second", "mfu", "memory_bytes", "memory_peak_bytes")
"""What a line says that another training of the same numbers would say differently."""


_LINE = {"phase": str, "step": int, "tokens": int, "seconds": float, "steps_done": int, "loss": float | str}
"""What every line has. What is not finite is text."""

_MEASURED = ("loss", "validation_loss", "mfu", "tokens_per_second")
_COUNTED = ("step", "tokens", "seconds", "steps_done", "skipped_steps", "memory_bytes", "memory_peak_bytes")
"""Numbers of a line, where it has them; what is counted is finite."""

_NOT_FINITE = ("nan", "inf", "-inf")

_MOST = 2.0**63
"""Of what is counted."""


def number(value: float | str) -> float:
    """A number of a line; NaN if it was not finite."""
    return math.nan if isinstance(value, str) else float(value)


def module_name(depth: int) -> str:
    """Name of the module of multi-token prediction that predicts the token ``depth`` places after the next."""
    return f"mtp_{depth}"


def branch_name(budget_tokens: int) -> str:
    """Name of the branch that ends at a budget."""
    return f"branch-{budget_tokens}"


class MetricsLog:
    """Appends lines ``{"phase": trunk or branch, "step": …, "tokens": …, "loss": …}`` to a file.

    Of several processes one writes; the others only read. ``loggers`` are given what is on disk, and ``log`` what a
    person must know.
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
        """Give the lines to ``loggers`` too, once they are on disk."""
        self._loggers = loggers

    def rewind(self, phase: str, step: int, *, start: int = 0, every: int = 0) -> int:
        """Forget what was logged of a phase after ``step``, the step it goes on from, and any torn last line.

        Lines that are damaged, or of a step that has one, are left out. That is said, and if none of the last ``every``
        steps has a line, where the phase began at ``start``.

        Returns the last step that had been logged of the phase; 0 if none.
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
        """Everything on disk so far.

        Raises:
          Damaged: a line is no line of a log.
        """
        return read(self._path)

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one line; it reaches the disk at the next ``flush``."""
        plain = {name: _plain(value) for name, value in values.items()}
        self._lines.append({"phase": phase, "step": step, **plain})

    def flush(self) -> None:
        """Write out all lines. Called before a checkpoint, so that no step a checkpoint covers is ever missing."""
        if self._writes:
            _append(self._path, "".join(json.dumps(line) + "\n" for line in self._lines).encode())
            for logger in self._loggers:
                for line in self._lines:
                    logger.write(line)
        self._lines.clear()


def read(path: Path) -> list[dict[str, Any]]:
    """Lines of a metrics file; none if there is no file.

    Raises:
      Damaged: a line is no line of a log.
    """
    return parse_lines(_bytes(path), path, whole=True)


def _bytes(path: Path) -> bytes:
    return read_bytes(path, remedy="remove it, or bring back a copy") if path.exists() else b""


def last_lines(path: Path, count: int) -> list[dict[str, Any]]:
    """At most ``count`` whole lines from the end of a metrics file, read from there.

    Raises:
      Damaged: one of those that were read is no line of a log.
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
    """The whole lines of the end of a metrics file, or of a ``whole`` one: what stands before the first line break may
    be the end of a line, and what stands after the last is torn.

    Raises:
      Damaged: one of them is no line of a log.
    """
    found, damaged = _lines(content, whole=whole)
    if damaged:
        raise Damaged(
            f"{_no_lines(where, damaged)}; bring back a copy, or remove them: a training that goes on leaves them out."
        )
    return found


def _lines(content: bytes, *, whole: bool) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The lines, and what stands where others should."""
    read = [(line, _line(line)) for line in content.split(b"\n")[0 if whole else 1 : -1]]
    return [parsed for _, parsed in read if parsed is not None], [line for line, parsed in read if parsed is None]


def _line(content: bytes) -> dict[str, Any] | None:
    """None if it is not as ``MetricsLog`` writes it in all that is shown of it."""
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
    """A list for every statistic, an entry per mixture layer."""
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
    """Add to a file all of some bytes or, where the disk is full, none: what is added next begins a line."""
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
    # As many digits as tell one float32 from any other.
    number = float(f"{value:.9g}") if not isinstance(value, int | str) else value
    return number if not isinstance(number, float) or math.isfinite(number) else str(number)
