"""Trainings of a study on this machine: a process per training, a core per process, as many at a time as cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from moejax.folder import claim
from moejax.study.study import work
from moejax.train.metrics import branch_name
from moejax.train.training import Training

Update = Callable[[float, str], None]
"""``update(share, text)``: how much of all trainings is done, and what is running."""

POLL_SECONDS = 0.3


USERS_MISTAKE = 2


def cores() -> list[int]:
    """Cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


def slots(workers: int | None) -> list[int | None]:
    """A core per worker, one worker per core if not said otherwise. On an accelerator, one worker on any core.

    Workers run on the CPU unless JAX_PLATFORMS names something else.
    """
    if os.environ.get("JAX_PLATFORMS", "cpu") != "cpu":
        return [None]
    every = cores()
    return [every[number % len(every)] for number in range(workers or len(every))]


def finished(folder: Path, training: Training) -> bool:
    """Whether every budget of a training has its row."""
    return all((folder / f"{branch_name(budget)}.json").exists() for budget in training.recipe.budgets_tokens)


def train_all(
    trainings: Sequence[Training], folder: Path, data_folder: Path, *, workers: int | None = None, update: Update
) -> None:
    """Train every model in ``folder/NAME``; what is finished stays, what was stopped goes on.

    When this process ends, however it ends, its workers end too.

    Raises:
      ValueError: trainings failed; the sentence says which, why, and where their logs are. The others are done.
    """
    waiting = [training for training in trainings if not finished(folder / training.name, training)]
    free = slots(workers)
    running: dict[subprocess.Popen[bytes], tuple[Training, int | None, int]] = {}
    failures: dict[int, str] = {}
    tracker = _Tracker(trainings, folder)
    try:
        while waiting or running:
            while waiting and free:
                training, core = waiting.pop(0), free.pop(0)
                log = _log(folder, training)
                said_before = log.stat().st_size if log.exists() else 0
                running[_start(training, folder, data_folder, core)] = (training, core, said_before)
            time.sleep(POLL_SECONDS)
            for process in [p for p in running if p.poll() is not None]:
                training, core, said_before = running.pop(process)
                free.append(core)
                if process.returncode:
                    why = _why(training, folder, process.returncode, said_before)
                    failures[process.returncode] = f"{failures.get(process.returncode, '')} {why}".strip()
            update(*tracker.state([training for training, _, _ in running.values()]))
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    if failures:
        message = f"{len(failures)} of {len(trainings)} trainings failed: {' '.join(failures.values())}"
        raise ValueError(message) if set(failures) == {USERS_MISTAKE} else RuntimeError(message)


def rows(trainings: Sequence[Training], folder: Path) -> list[dict]:
    """The rows of all trainings, each one's budgets in ascending order."""
    return [
        json.loads((folder / training.name / f"{branch_name(budget)}.json").read_text())
        for training in trainings
        for budget in training.recipe.budgets_tokens
    ]


def _start(training: Training, folder: Path, data_folder: Path, core: int | None) -> subprocess.Popen[bytes]:
    here = folder / training.name
    claim(here, "training.json", training.as_json())
    command = [sys.executable, "-m", "moejax", "train", "--out", str(here), "--data", str(data_folder)]
    command += ["--parent", str(os.getpid()), *(["--core", str(core)] if core is not None else [])]
    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    with _log(folder, training).open("ab") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )


def _log(folder: Path, training: Training) -> Path:
    return folder / f"{training.name}.log"


def _why(training: Training, folder: Path, returncode: int, said_before: int) -> str:
    path = _log(folder, training)
    said = path.read_bytes()[said_before:].decode(errors="replace").strip().splitlines() or ["it said nothing"]
    how = f"status {returncode}" if returncode > 0 else f"signal {signal.Signals(-returncode).name}"
    return f"{training.name} ended with {how}: {said[-1].removeprefix('moejax: ').rstrip('.')} (see {path})."


class _Tracker:
    """Reads how far each training is from the end of its metrics file."""

    def __init__(self, trainings: Sequence[Training], folder: Path):
        self._trainings = trainings
        self._folder = folder
        self._work = {training.name: work(training) for training in trainings}
        self._all = sum(self._work.values())

    def state(self, running: Sequence[Training]) -> tuple[float, str]:
        """Share of all work that is done, and a line about what is running."""
        done, texts, ended = 0.0, [], 0
        for training in self._trainings:
            folder = self._folder / training.name
            if finished(folder, training):
                ended += 1
                done += self._work[training.name]
                continue
            last = _last_line(folder / "metrics.jsonl")
            done += self._work[training.name] * last.get("steps_done", 0) / training.recipe.total_steps
            if training in running:
                texts.append(
                    f"{training.name} loss {last['loss']:.2f}" if "loss" in last else f"{training.name} compiling"
                )
        return done / self._all, f"{ended} of {len(self._trainings)} models trained; {', '.join(texts)}"


def _last_line(path: Path) -> dict:
    """The last whole line of a metrics file, or nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            whole = file.read().split(b"\n")[:-1]
        return json.loads(whole[-1]) if whole else {}
    except (OSError, json.JSONDecodeError):
        return {}
