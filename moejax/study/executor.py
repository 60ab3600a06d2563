"""Define engines, which run a study's trainings: local processes, Slurm, Kubernetes, SkyPilot.

On every engine a training is the same command, ``moejax train --out STUDY/models/NAME --data STUDY/data --programs
STUDY/programs``. It reads its training from the folder, resumes from the latest checkpoint, and writes a file per row.
An engine only starts the command on some machine, so a study may move from one engine to another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from moejax.errors import ChildError, UserError
from moejax.say import ProgressCallback
from moejax.study.resources import ResourceRequest
from moejax.train.training import Training

POLL_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training of a study with its resource request."""

    training: Training
    study: PurePath
    """The study's folder, as seen by the machine that trains."""
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    beside: tuple[Training, ...] = ()
    """Trainings that differ only in seed, learning rate and weight decay, vmapped with this one in one process."""

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.training.name

    @property
    def folder(self) -> PurePath:
        """Folder of the training."""
        return self.study / "models" / self.name

    @property
    def words(self) -> list[str]:
        """Arguments of the training command, after ``python -m moejax``."""
        words = ["train", "--out", str(self.folder), "--data", str(self.study / "data")]
        words += ["--programs", str(self.study / "programs")]
        words += ["--distributed"] if self.resources.processes > 1 else []
        beside = [str(self.study / "models" / training.name) for training in self.beside]
        return words + (["--beside", *beside] if beside else [])


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A task that an engine no longer works on."""

    task: Task
    why: str = ""
    """Reason of the failure; empty if the task succeeded."""
    users_mistake: bool = False


@runtime_checkable
class Engine(Protocol):
    """A service that runs trainings."""

    def describe(self, tasks: Sequence[Task]) -> str:
        """Return the scripts or manifests that ``submit`` would send."""
        ...

    def check(self) -> None:
        """Raise ``UserError`` with a remedy if the engine cannot be reached from this machine."""
        ...

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Submit tasks without waiting, and return the engine's id of each task, by model.

        Raises:
          UserError: the engine is not available, or refuses.
        """
        ...


@runtime_checkable
class Executor(Engine, Protocol):
    """An engine whose tasks can be awaited."""

    def ended(self) -> list[Ended]:
        """Return the tasks that ended since the previous call."""
        ...

    def stop(self) -> None:
        """Stop all work."""
        ...


def train_all(
    executor: Executor, tasks: Sequence[Task], state: Callable[[], tuple[float, str]], update: ProgressCallback
) -> None:
    """Submit tasks and wait until all have ended. ``state`` returns their progress.

    Raises:
      UserError: trainings failed; the message names them and the reasons. All others are done.
      ChildError: the same, if a failure was not only a mistake of the user.
    """
    left, failures = len(tasks), []
    try:
        executor.submit(tasks)
        while left:
            time.sleep(POLL_SECONDS)
            ended = executor.ended()
            left -= len(ended)
            failures += [end for end in ended if end.why]
            update(*state())
    finally:
        executor.stop()
    if failures:
        why = list(dict.fromkeys(end.why for end in failures))
        message = f"{len(failures)} of {len(tasks)} trainings failed: {' '.join(why)}"
        raise UserError(message) if all(end.users_mistake for end in failures) else ChildError(message)
