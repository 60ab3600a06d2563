"""Where the log is shown beside ``metrics.jsonl``."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from moejax.errors import UserError

if TYPE_CHECKING:
    from moejax.train.training import Training


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Which of them are written."""

    tensorboard: bool = False
    """Events in ``tensorboard/`` of the training's folder."""
    wandb: str = ""
    """Project of Weights & Biases; empty for none."""

    def check(self) -> None:
        """Raise ``UserError`` if what a choice needs is not installed."""
        for chosen, package, extra in (
            (self.tensorboard, "tensorboardX", "tensorboard"),
            (self.wandb, "wandb", "wandb"),
        ):
            if chosen and importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"recipe.loggers.{extra} needs {package}, which is not installed: pip install 'moejax[{extra}]'."
                )


Line = Mapping[str, Any]
"""One line of ``metrics.jsonl``."""


@runtime_checkable
class Logger(Protocol):
    """What shows a log. It is given every line once the line is on disk, and is told when lines are forgotten."""

    def begin(self, run: str, kept: Sequence[Line]) -> None:
        """A run, trunk or branch, goes on after the lines that the log keeps of it."""
        ...

    def write(self, line: Line) -> None:
        """The next line of the run."""
        ...

    def close(self) -> None:
        """No more lines come."""
        ...


@contextlib.contextmanager
def open_loggers(training: Training, folder: Path) -> Any:
    """Yields those that a training asks for, by one process."""
    from moejax.train.tensorboard import TensorBoardLogger
    from moejax.train.weights_and_biases import WandbLogger

    config, loggers = training.recipe.loggers, []
    if config.tensorboard:
        loggers.append(TensorBoardLogger(folder / "tensorboard"))
    if config.wandb:
        loggers.append(WandbLogger(folder, project=config.wandb, name=training.name, config=training.as_json()))
    try:
        yield loggers
    finally:
        for logger in loggers:
            logger.close()


def scalars(line: Line) -> dict[str, float]:
    """The numbers of a line by the names they are shown under; those of layers as ``layers/load_cv/3``."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if name == "layers":
            for statistic, values in value.items():
                if statistic != "layer":
                    for layer, one in zip(value["layer"], values, strict=True):
                        found[f"layers/{statistic}/{layer}"] = float(one)
        elif name not in ("run", "step", "batch_digest"):
            found[name] = float(value)
    return found
