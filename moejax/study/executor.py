"""How a study's trainings are handed to an engine: this machine's processes, Slurm, Kubernetes, SkyPilot.

On every engine a training is the same command, ``moejax train --out STUDY/models/NAME --data STUDY/data --programs
STUDY/programs``, which finds there what to train, goes on from what is there, and leaves a file per row. So an engine
only has to start it somewhere, and a study may go from one engine to another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Protocol, runtime_checkable

from moejax.errors import ChildError, UserError
from moejax.progress import ProgressCallback
from moejax.study.resources import ResourceRequest
from moejax.train.training import Training

POLL_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training of a study, and what it takes."""

    training: Training
    study: PurePath
    """The study's folder, as the machine sees it that trains."""
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    beside: tuple[Training, ...] = ()
    """Trainings that differ in seed, learning rate and weight decay alone, vmapped with it in one process."""

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
        """The command that trains, after ``python -m moejax``."""
        words = ["train", "--out", str(self.folder), "--data", str(self.study / "data")]
        words += ["--programs", str(self.study / "programs")]
        words += ["--distributed"] if self.resources.processes > 1 else []
        beside = [str(self.study / "models" / training.name) for training in self.beside]
        return words + (["--beside", *beside] if beside else [])


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A task that an engine works on no more."""

    task: Task
    why: str = ""
    """Why it failed; empty if it did not."""
    users_mistake: bool = False


@runtime_checkable
class Engine(Protocol):
    """What trainings are handed to."""

    def describe(self, tasks: Sequence[Task]) -> str:
        """What ``submit`` would hand over: scripts, manifests."""
        ...

    def check(self) -> None:
        """Raise ``UserError`` if the engine cannot be reached from here; the sentence says what to do."""
        ...

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Hand over, and return at once what the engine calls each task, by model.

        Raises:
          UserError: the engine is not there, or refuses.
        """
        ...


@runtime_checkable
class Executor(Engine, Protocol):
    """An engine that can be waited for."""

    def ended(self) -> list[Ended]:
        """What has ended since this was asked last."""
        ...

    def stop(self) -> None:
        """Work on nothing any more."""
        ...


def train_all(
    executor: Executor, tasks: Sequence[Task], state: Callable[[], tuple[float, str]], update: ProgressCallback
) -> None:
    """Bring tasks to their ends; ``state`` says how far they are.

    Raises:
      UserError: trainings failed; the sentence says which and why. The others are done.
      ChildError: the same, if it was not a mistake of the user's alone.
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
