"""Write and read ``metrics.jsonl``, which has one line per logged step, also after interruptions. Optionally send the
lines to TensorBoard or Weights & Biases (W&B). There, the trunk and every budget are separate runs; the run of a budget
starts with the lines of the trunk.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from moejax.errors import UserError
from moejax.folder import open_regular, write_text
from moejax.stored import Damaged, parse_line, read_bytes, read_json, write_json
from moejax.wording import install_command, says, some

TRUNK = "trunk"

OF_THE_CLOCK = ("seconds", "tokens_per_second", "mfu", "memory_bytes", "memory_peak_bytes")
"""Fields that differ between training runs with the same numbers."""

Line = Mapping[str, Any]
"""One line of ``metrics.jsonl``."""

_LINE = {"phase": str, "step": int, "tokens": int, "seconds": float, "steps_done": int, "loss": float | str}
"""Fields of every line. Non-finite numbers are stored as text."""

_COUNTED = ("step", "tokens", "seconds", "steps_done", "skipped_steps", "memory_bytes", "memory_peak_bytes")
"""Fields that must be finite and at most 2^63."""

_PHASE = re.compile(rf"{TRUNK}|branch-[0-9]{{1,18}}")


def is_phase(name: str) -> bool:
    """Return whether a phase of a training run can have this name."""
    return _PHASE.fullmatch(name) is not None


def number(value: float | str) -> float:
    """Return a line's value as a number; NaN if it was not finite."""
    return math.nan if isinstance(value, str) else float(value)


def module_name(depth: int) -> str:
    """Return the name of the multi-token-prediction module that predicts the token ``depth`` positions after the
    next.
    """
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
        self._path, self._writes, self._log = path, writes, log
        self.loggers = loggers

    def rewind(self, phase: str, step: int, start: int) -> int:
        """Remove the lines of a phase after ``step``, from which the phase resumes, and an incomplete last line.
        Damaged lines are removed with a message.

        Return the last logged step of the phase; 0 if there is none.

        Args:
          start: step after which the phase starts.
        """
        lines, damaged = _lines(_bytes(self._path), whole=True)
        reached = max((line["step"] for line in lines if line["phase"] == phase), default=0)
        if self._writes:
            if damaged:
                self._log(f"{_no_lines(self._path, damaged)}; they are removed.")
            kept = [line for line in lines if line["phase"] != phase or line["step"] <= step]
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))
            for logger in self.loggers:
                logger.begin(phase, history(kept, phase, start))
        return reached

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines on disk.

        Raises:
          Damaged: a line is invalid.
        """
        return read(self._path)

    def write(self, phase: str, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line to the file and return it, keyed by field. The line is on disk before a checkpoint of its
        step.
        """
        line = {"phase": phase, "step": step, **{name: _plain(value) for name, value in values.items()}}
        if self._writes:
            _append(self._path, f"{json.dumps(line)}\n".encode())
            for logger in self.loggers:
                logger.write(line)
        return line


def history(lines: Sequence[dict[str, Any]], phase: str, start: int | None = None) -> list[dict[str, Any]]:
    """Return the trunk's lines up to the start of a phase, followed by the phase's lines.

    Args:
      start: step after which the phase starts; by default the step before its first line.
    """
    own = [line for line in lines if line["phase"] == phase]
    last = own[0]["step"] - 1 if start is None else start
    return [*(line for line in lines if line["phase"] == TRUNK and line["step"] <= last), *own]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file; an empty list if there is no file.

    Raises:
      Damaged: a line is invalid.
    """
    return parse_lines(_bytes(path), path, whole=True)


def _bytes(path: Path) -> bytes:
    return read_bytes(path, remedy="remove it, or restore a copy") if path.exists() else b""


VALIDATION_LOSS = "validation_loss"
"""Field of the validation loss; with several sources, that of source NAME is ``validation_loss_NAME``."""


def source_losses(values: Mapping[str, Any], field: str) -> dict[str, float]:
    """Return the losses of the sources, keyed by name, from a log line or a row. ``field`` is the field of the loss
    over all sources."""
    prefix = f"{field}_"
    return {name.removeprefix(prefix): number(loss) for name, loss in values.items() if name.startswith(prefix)}


def last_lines(path: Path, count: int, field: str = "loss") -> list[dict[str, Any]]:
    """Return at most ``count`` complete lines that have a field, from the end of a metrics file. Read only as much of
    the file as needed.

    Raises:
      Damaged: a line that was read is invalid.
    """
    try:
        if (descriptor := open_regular(path, os.O_RDONLY)) is None:
            raise Damaged(f"{path} is not a regular file; remove it, or restore a copy.")
        with os.fdopen(descriptor, "rb") as file:
            end, size = file.seek(0, os.SEEK_END), 4096
            while True:
                file.seek(max(0, end - size))
                lines = [line for line in parse_lines(file.read(), path, whole=size >= end) if field in line]
                if len(lines) >= count or size >= end:
                    return lines[-count:]
                size *= 4
    except OSError:
        return []


def parse_lines(content: bytes, where: object, *, whole: bool) -> list[dict[str, Any]]:
    """Parse the complete lines of a metrics file. Text after the last line break is incomplete and ignored. If the
    content is not the ``whole`` file but its end, text before the first line break is ignored too.

    Raises:
      Damaged: a line is invalid.
    """
    lines, damaged = _lines(content, whole=whole)
    if damaged:
        raise Damaged(
            f"{_no_lines(where, damaged)}; restore a copy, or resume the training run, which removes these lines."
        )
    return lines


def _lines(content: bytes, *, whole: bool) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the parsed lines and the damaged lines."""
    read = [(line, _line(line)) for line in content.split(b"\n")[0 if whole else 1 : -1]]
    return [parsed for _, parsed in read if parsed is not None], [line for line, parsed in read if parsed is None]


def _line(content: bytes) -> dict[str, Any] | None:
    """Return a line's values, keyed by field; None if a field does not have the format that ``MetricsLog`` writes."""
    line = parse_line(content, _LINE)
    if line is None or not is_phase(line["phase"]):
        return None
    scalars = [value for name, value in line.items() if name not in ("phase", "layers")]
    counted = [line[name] for name in _COUNTED if name in line]
    valid = all(map(_is_number, scalars)) and all(float(number) < 2.0**63 for number in counted)
    return line if valid and _are_layers(line.get("layers", {"layer": []})) else None


def _is_number(value: object) -> bool:
    # Non-finite numbers are stored as text.
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return is_finite or value in ("nan", "inf", "-inf")


def _are_layers(layers: object) -> bool:
    """Return whether the value has a list for every statistic, with an entry per MoE layer."""
    if not isinstance(layers, dict) or not all(isinstance(values, list) for values in layers.values()):
        return False
    names, *statistics = layers.get("layer"), *(values for name, values in layers.items() if name != "layer")
    return names is not None and all(
        len(values) == len(names) and all(map(_is_number, values)) for values in statistics
    )


def _no_lines(where: object, damaged: Sequence[bytes]) -> str:
    shown = some([repr(line[:40].decode(errors="replace")) for line in damaged], most=3)
    return f"{where} has {len(damaged)} invalid log lines: {shown}"


def _append(path: Path, content: bytes) -> None:
    """Append all bytes, or none if the disk is full, so that the next append begins a line."""
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


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Further loggers of a training run, in addition to ``metrics.jsonl``."""

    tensorboard: bool = False
    """Write events to ``tensorboard/`` in the training run's folder."""
    wandb: str = ""
    """Project name in Weights & Biases; empty disables this logger."""

    def check(self) -> None:
        """Raise ``UserError`` if a chosen logger is not installed."""
        for chosen, package, extra in (
            (self.tensorboard, "tensorboardX", "tensorboard"),
            (self.wandb, "wandb", "wandb"),
        ):
            if chosen and importlib.util.find_spec(package) is None:
                raise UserError(
                    f"recipe.loggers.{extra} needs {package}, which is not installed. Run {install_command(extra)}."
                )


class Logger(Protocol):
    """Destination of the log. It receives every line once the line is on disk, and is notified of removed lines."""

    def begin(self, phase: str, kept: Sequence[Line]) -> None:
        """Begin or resume a phase (trunk or branch). ``kept`` has its earlier lines that are still in the log."""
        ...

    def write(self, line: Line) -> None:
        """Write the next line of the phase."""
        ...

    def close(self) -> None:
        """Close the logger; no lines follow."""
        ...


@contextlib.contextmanager
def open_loggers(config: LoggerConfig, folder: Path, name: str, settings: Line) -> Iterator[Sequence[Logger]]:
    """Yield the loggers configured by a training run in ``folder``; only one process opens them."""
    loggers: list[Logger] = []
    if config.tensorboard:
        loggers.append(TensorBoardLogger(folder / "tensorboard"))
    if config.wandb:
        loggers.append(WandbLogger(folder, project=config.wandb, name=name, config=settings))
    try:
        yield loggers
    finally:
        for logger in loggers:
            logger.close()


def scalars(line: Line) -> dict[str, float]:
    """Return a line's numbers, keyed by display name. Layer statistics have names such as ``layers/load_cv/3``."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if name == "layers":
            for statistic, values in value.items():
                if statistic != "layer":
                    for layer, one in zip(value["layer"], values, strict=True):
                        found[f"layers/{statistic}/{layer}"] = float(one)
        elif name not in ("phase", "step", "batch_digest"):
            found[name] = float(value)
    return found


class TensorBoardLogger:
    """Event writer that uses tensorboardX without its queue, because closing the queue may lose the last events.

    Events cannot be removed, so a resumed run is rewritten from the lines in its log. Thus no point appears twice or is
    missing.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._records: Any = None

    def begin(self, phase: str, kept: Sequence[Line]) -> None:
        """Remove the run's events and write events for the lines ``kept``."""
        from tensorboardX import RecordWriter
        from tensorboardX.proto.event_pb2 import SessionLog  # type: ignore[attr-defined]

        self.close()
        place = self._folder / phase
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        now = time.time()
        self._records = RecordWriter(str(place / f"events.out.tfevents.{now:.0f}.{socket.gethostname()}"))
        self._add(file_version="brain.Event:2")
        # This event makes a running TensorBoard discard the events that it has read before.
        self._add(session_log=SessionLog(status=SessionLog.START), step=0)
        for line in kept:
            self.write(line)

    def write(self, line: Line) -> None:
        """Write one event with all scalars of the line."""
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(line).items()]
        self._add(summary=Summary(value=values), step=line["step"])
        self._records.flush()

    def close(self) -> None:
        """Close the file if it is open."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _add(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

        self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())


SHOWN = "wandb.json"
"""File with the id of the runs in Weights & Biases."""


class WandbLogger:
    """Logger that sends each step once: W&B keeps the steps of a resumed run, so they are not sent again."""

    def __init__(self, folder: Path, *, project: str, name: str, config: Mapping[str, Any]):
        self._folder, self._project, self._name, self._config = folder, project, name, dict(config)
        self._run: Any = None
        path, remedy = folder / SHOWN, "remove it to upload the log again under a new id"
        if not path.exists():
            # The id must be on disk before anything is sent under it.
            write_json(path, {"id": uuid.uuid4().hex[:12]})
        self._id = read_json(path, {"id": str}, remedy=remedy)["id"]

    def begin(self, phase: str, kept: Sequence[Line]) -> None:
        """Open or resume the run, and send logged lines that were not sent yet.

        Raises:
          UserError: W&B cannot be reached or is not set up.
        """
        import wandb  # type: ignore[import-not-found]

        self.close()
        try:
            self._run = wandb.init(
                project=self._project,
                group=self._name,
                name=f"{self._name}/{phase}",
                id=f"{self._id}-{phase}",
                resume="allow",
                dir=str(self._folder),
                config=self._config,
            )
        except Exception as error:
            raise UserError(
                f"Weights & Biases cannot be written to ({says('wandb', error)}). Run wandb login, set "
                "WANDB_MODE=offline, or leave recipe.loggers.wandb empty."
            ) from error
        for line in kept:
            self.write(line)

    def write(self, line: Line) -> None:
        """Send a line unless its step was already sent. In a resumed run, W&B's step is the last step plus one."""
        if line["step"] >= self._run.step:
            self._run.log(scalars(line), step=line["step"])

    def close(self) -> None:
        """Finish the run if one is open."""
        if self._run is not None:
            self._run.finish()
            self._run = None
