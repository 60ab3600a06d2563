"""Run a study's trainings on this machine: a process per training, a core per process, as many at a time as cores."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from moejax.study.executor import Ended, Task

USERS_MISTAKE = 2
FULL_BYTES = 2**16
"""Free bytes below which a disk counts as full. A process may have been unable to log that the disk is full."""


def cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


def slots(workers: int | None) -> list[int | None]:
    """Return a core per worker, by default one worker per core. On an accelerator, return one worker on any core.

    Workers run on the CPU unless JAX_PLATFORMS names something else.
    """
    if os.environ.get("JAX_PLATFORMS", "cpu") != "cpu":
        return [None]
    every = cores()
    return [every[number % len(every)] for number in range(workers or len(every))]


class LocalExecutor:
    """Processes on this machine. They end whenever this process ends."""

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
        """Start one process per free core; ``ended`` starts the others in order."""
        self._waiting += tasks
        self._start()
        return {task.name: task.name for task in tasks}

    def ended(self) -> list[Ended]:
        """Return the tasks whose processes have ended, and start others on their cores."""
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
    """Return the log file of a training's process on this machine."""
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
    """Return whether the disk of a file has no room for a line and a checkpoint's smallest file."""
    return shutil.disk_usage(path.parent).free < FULL_BYTES


def _why(task: Task, returncode: int, said_before: int) -> str:
    path = log_file(task)
    said = path.read_bytes()[said_before:].decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    how = f"status {returncode}" if returncode > 0 else f"signal {signal.Signals(-returncode).name}"
    return f"{task.name} ended with {how}: {said[-1].removeprefix('moejax: ').rstrip('.')} (see {path})."
