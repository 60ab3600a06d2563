"""Define engines, which run a study's training runs: local processes, Slurm, Kubernetes, SkyPilot.

On every engine a training run is the same command, ``moejax train --out STUDY/models/NAME --data STUDY/data --programs
STUDY/programs``. The command reads its settings from the folder, resumes from the latest checkpoint, and writes a file
per row. An engine only starts this command on some machine, so a study may move from one engine to another.

This module's own engine is the local machine: it runs one process per training run, and at most one process per core.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Protocol, runtime_checkable

from moejax.errors import ChildError, UserError
from moejax.say import ProgressCallback
from moejax.study.estimate import ResourceRequest
from moejax.train.training import Training

POLL_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training run of a study with its resource request."""

    training: Training
    study: PurePath
    """The study's folder, as seen by the machine that trains."""
    resources: ResourceRequest = field(default_factory=ResourceRequest)
    beside: tuple[Training, ...] = ()
    """Further training runs, which differ only in seed, learning rate and weight decay and are vmapped with this
    one.
    """

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.training.name

    def job_name(self, study: str) -> str:
        """Return the name of the job that trains the model of a study."""
        # The name of a training run that was launched without a study already begins with the study's name.
        return self.name if f"{self.name}-".startswith(f"{study}-") else f"{study}-{self.name}"

    @property
    def folder(self) -> PurePath:
        """Folder of the training run."""
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
class EngineOptions:
    """Settings that all engines have; the options of ``moejax launch`` describe them."""

    chip: str | None
    mfu: float
    submit: bool


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A task that has ended on its engine."""

    task: Task
    why: str = ""
    """Reason for the failure; empty if the task succeeded."""
    users_mistake: bool = False


@runtime_checkable
class Engine(Protocol):
    """A service that runs training runs."""

    def describe(self, tasks: Sequence[Task]) -> str:
        """Return the scripts or manifests that ``submit`` would send."""
        ...

    def check(self) -> None:
        """Raise ``UserError`` with a remedy if the engine cannot be reached from this machine."""
        ...

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Submit tasks without waiting, and return the engine's ids of the tasks, keyed by model.

        Raises:
          UserError: the engine is not available, or refuses the tasks.
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
      UserError: training runs failed; the message names them and the reasons. All other training runs are done.
      ChildError: training runs failed, not all of them because of user mistakes.
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
        message = f"{len(failures)} of {len(tasks)} training runs failed: {' '.join(why)}"
        raise UserError(message) if all(end.users_mistake for end in failures) else ChildError(message)


USERS_MISTAKE = 2
FULL_BYTES = 2**16
"""Free bytes below which a disk counts as full, because a process on a full disk may be unable to log the reason."""


def cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


def slots(workers: int | None) -> list[int | None]:
    """Return the core of each worker, by default one worker per core. With an accelerator, return one worker on any
    core.

    Workers run on the CPU unless JAX_PLATFORMS names another platform.
    """
    if os.environ.get("JAX_PLATFORMS", "cpu") != "cpu":
        return [None]
    every = cores()
    return [every[number % len(every)] for number in range(workers or len(every))]


class LocalExecutor:
    """Engine that runs processes on this machine. They end when this process ends."""

    def __init__(self, workers: int | None = None):
        self._free = slots(workers)
        self._waiting: list[Task] = []
        self._running: dict[subprocess.Popen[bytes], tuple[Task, int | None, int]] = {}

    def describe(self, tasks: Sequence[Task]) -> str:
        """Return the commands, one per line."""
        return "\n".join(shlex.join(["moejax", *task.words]) for task in tasks)

    def check(self) -> None:
        """Do nothing: this machine is always available."""

    def submit(self, tasks: Sequence[Task]) -> dict[str, str]:
        """Start one process per free core; ``ended`` starts the remaining tasks in order."""
        self._waiting += tasks
        self._start()
        return {task.name: task.name for task in tasks}

    def ended(self) -> list[Ended]:
        """Return the tasks whose processes have ended, and start waiting tasks on their cores."""
        finished = []
        for process in [process for process in self._running if process.poll() is not None]:
            task, core, said_before = self._running.pop(process)
            self._free.append(core)
            ended = Ended(task=task)
            if process.returncode:
                why, full = _why(task, process.returncode, said_before), _is_full(log_file(task))
                if full:
                    why += f" The disk of {task.folder} is full; free space and run the same command again."
                ended = Ended(task=task, why=why, users_mistake=full or process.returncode == USERS_MISTAKE)
            finished.append(ended)
        self._start()
        return finished

    def stop(self) -> None:
        """Terminate all processes."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait()

    def _start(self) -> None:
        while self._waiting and self._free:
            task, core = self._waiting.pop(0), self._free.pop(0)
            log = log_file(task)
            said_before = log.stat().st_size if log.exists() else 0
            self._running[_process(task, core)] = (task, core, said_before)


def log_file(task: Task) -> Path:
    """Return the log file of a training run's process on this machine."""
    return Path(task.folder).with_name(f"{task.name}.log")


def _process(task: Task, core: int | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "moejax", *task.words, "--parent", str(os.getpid())]
    command += [] if core is None else ["--core", str(core)]
    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    with log_file(task).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )


def _is_full(path: Path) -> bool:
    """Return whether a file's disk has no space for a log line and a checkpoint's smallest file."""
    return shutil.disk_usage(path.parent).free < FULL_BYTES


def _why(task: Task, returncode: int, said_before: int) -> str:
    path = log_file(task)
    said = path.read_bytes()[said_before:].decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    how = f"status {returncode}" if returncode > 0 else f"signal {signal.Signals(-returncode).name}"
    return f"{task.name} ended with {how}: {said[-1].removeprefix('moejax: ').rstrip('.')} (see {path})."
