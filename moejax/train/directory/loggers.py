"""Show the log in TensorBoard or Weights & Biases, in addition to ``metrics.jsonl``: a run for the trunk and each
branch."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from moejax.errors import UserError
from moejax.stored import read_json, write_json
from moejax.wording import says


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Loggers to write to."""

    tensorboard: bool = False
    """Write events to ``tensorboard/`` in the training's folder."""
    wandb: str = ""
    """Project in Weights & Biases; empty for none."""

    def check(self) -> None:
        """Raise ``UserError`` if a chosen logger is not installed."""
        for chosen, package, extra in (
            (self.tensorboard, "tensorboardX", "tensorboard"),
            (self.wandb, "wandb", "wandb"),
        ):
            if chosen and importlib.util.find_spec(package) is None:
                raise UserError(
                    f"recipe.loggers.{extra} needs {package}, which is not installed: pip install 'moejax[{extra}]'."
                )


Line = Mapping[str, Any]
"""One line of ``metrics.jsonl``."""


@runtime_checkable
class Logger(Protocol):
    """Destination of the log. It receives every line once the line is on disk, and is notified of removed lines."""

    def begin(self, phase: str, kept: Sequence[Line]) -> None:
        """Begin or resume a phase, trunk or branch, after the lines that the log keeps of it."""
        ...

    def write(self, line: Line) -> None:
        """Write the next line of the phase."""
        ...

    def close(self) -> None:
        """Close the logger; no more lines follow."""
        ...


@contextlib.contextmanager
def open_loggers(
    config: LoggerConfig, folder: Path, name: str, settings: Mapping[str, Any]
) -> Iterator[Sequence[Logger]]:
    """Yield the loggers that a training in ``folder`` asks for; one process opens them."""
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
    """Return the numbers of a line by display name; those of layers as ``layers/load_cv/3``."""
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
    """Event writer through tensorboardX, without its queue, which may lose the last events when it is closed.

    Events cannot be removed, so a resumed run is rewritten from the lines that its log keeps. No point appears twice,
    and none is missing that a killed process had not written.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._records: Any = None

    def begin(self, phase: str, kept: Sequence[Line]) -> None:
        """Remove the run's events and write those of ``kept``."""
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
"""File with the id of a training's runs in Weights & Biases."""


class WandbLogger:
    """Logger that shows each step once: W&B keeps the steps of a run that is resumed, and they are not sent again."""

    def __init__(self, folder: Path, *, project: str, name: str, config: Mapping[str, Any]):
        self._folder, self._project, self._name, self._config = folder, project, name, dict(config)
        self._run: Any = None
        path, remedy = folder / SHOWN, "remove it, and the log is uploaded again under another id"
        if not path.exists():
            # The id must be on disk before anything is shown under it.
            write_json(path, {"id": uuid.uuid4().hex[:12]})
        self._id = read_json(path, {"id": str}, remedy=remedy)["id"]

    def begin(self, phase: str, kept: Sequence[Line]) -> None:
        """Open or resume the run, and show logged lines that were not shown yet.

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
                f"Weights & Biases cannot be written to ({says('wandb', error)}); run wandb login, set "
                f"WANDB_MODE=offline, or leave recipe.loggers.wandb empty."
            ) from error
        for line in kept:
            self.write(line)

    def write(self, line: Line) -> None:
        """Show a line unless its step was already shown. W&B's step of a resumed run is the one after its last."""
        if line["step"] >= self._run.step:
            self._run.log(scalars(line), step=line["step"])

    def close(self) -> None:
        """Finish the run if one is open."""
        if self._run is not None:
            self._run.finish()
            self._run = None
