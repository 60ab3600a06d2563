"""Read a study's identity, launches and progress from its folder, independently of the engine that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

from fsspec.implementations.dirfs import DirFileSystem

from moejax.errors import UserError
from moejax.storage import check_regular, open_storage, read_text
from moejax.stored import Damaged, parse_json, sealed
from moejax.study.study import work
from moejax.train.directory.attempts import (
    ATTEMPTS,
    DONE,
    FAILED,
    INTERRUPTED,
    RUNNING,
    SILENT_SECONDS,
    STEPPING,
    WAITING,
    Attempt,
    device_seconds,
    parse_attempts,
    running_text,
)
from moejax.train.directory.identity import HISTORY, parse_history
from moejax.train.directory.metrics import number, parse_lines
from moejax.train.directory.row_file import check_row, parse_row, row_file
from moejax.train.training import Training, phase_text
from moejax.wording import told

REMEDY = "restore a copy, or give the study's config with --config and another --out"
"""Remedy for a ``study.json`` or ``analysis.json`` that cannot be read."""


def identity(url: str | PathLike[str]) -> dict[str, Any]:
    """Return the settings that determine the runs of the study in a local or remote folder, keyed by field of
    ``Study``.

    Raises:
      UserError: the folder holds no study, or cannot be reached.
    """
    text = read_text(open_storage(url), "study.json")
    if text is None:
        raise UserError(f"{url} holds no study; start one with moejax study --config=FILE.py.")
    return parse_json(text, dict, f"{url}/study.json", remedy=REMEDY)


LAUNCHES = "launches.jsonl"
"""File that logs launches: the engine, and its id for each task."""


def write_launch(study: str | PathLike[str], engine: str, ids: Mapping[str, str]) -> None:
    """Append a launch with the engine's ids of the tasks, keyed by model."""
    storage = open_storage(study)
    line = sealed({"engine": engine, "at": time.time(), "ids": dict(ids)}, indent=None)
    storage.pipe_file(LAUNCHES, ((read_text(storage, LAUNCHES) or "") + line).encode())


def launched(study: str | PathLike[str], engine: str) -> dict[str, str]:
    """Return the latest engine ids of the tasks, keyed by model."""
    lines = (read_text(open_storage(study), LAUNCHES) or "").splitlines()
    ids: dict[str, str] = {}
    for place, line in enumerate(lines, start=1):
        where = f"Line {place} of {study}/{LAUNCHES}"
        remedy = "restore a copy, or remove the line and check manually which tasks were launched"
        launch = parse_json(line, {"engine": str, "ids": dict[str, str]}, where, remedy=remedy)
        if launch["engine"] == engine:
            ids |= launch["ids"]
    return ids


T = TypeVar("T")

_TAIL_BYTES = 8192


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Progress of one training run."""

    model: str
    state: str
    """One of ``moejax.train.directory.attempts.STATES``. An interrupted training run resumes at the next launch or
    requeue, a failed training run at the next launch.
    """
    activity: str
    """Activity of a running training run, such as ``compiling``; empty while it logs steps, or if it is not running."""
    rows: tuple[dict[str, Any], ...]
    runs: int
    share: float
    """Share of finished steps in trunk and branches."""
    flops: float
    """FLOPs of all steps."""
    phase: str
    """Phase of the last logged step, named by ``phase_text``."""
    loss: float | None
    """Last logged training loss; NaN if it was not finite."""
    attempts: int
    """Number of starts."""
    where: str
    """The engine's id for the task, and the machine of the last attempt."""
    why: str
    """Reason for the failure, or problems with the run's files."""
    damaged: tuple[str, ...]
    """Sentences about problems with the run's files."""
    device_seconds: float
    """Device seconds spent on the run, lost work included."""
    seconds_left: float | None
    """Remaining seconds at the speed of the last steps; None if the run is not running."""


def run_statuses(
    storage: DirFileSystem, trainings: Sequence[Training], known: Mapping[str, RunStatus] | None = None
) -> list[RunStatus]:
    """Return the status of each training run of the study in ``storage``. Training runs that ``known`` reports as done
    are not read again.
    """
    before = known or {}
    return [
        before[training.name]
        if training.name in before and before[training.name].state == DONE
        else _run_status(storage, training)
        for training in trainings
    ]


def seconds_left(statuses: Sequence[RunStatus]) -> float | None:
    """Return the seconds until all runs are done at the current speed; None if no run is running."""
    pace = [one.flops * (1 - one.share) / one.seconds_left for one in statuses if one.seconds_left]
    left = sum(one.flops * (1 - one.share) for one in statuses)
    return left / sum(pace) if pace else None


def progress(statuses: Sequence[RunStatus]) -> tuple[float, str]:
    """Return the share of finished work, and a line of text about the training runs that are running."""
    done = sum(one.flops * one.share for one in statuses)
    running = ", ".join(
        f"{one.model} {one.activity or RUNNING}"
        if one.activity or one.loss is None
        else f"{one.model} loss {one.loss:.2f}{one.phase and f' ({one.phase})'}"
        for one in statuses
        if one.state == RUNNING
    )
    ended = sum(one.state == DONE for one in statuses)
    return done / sum(one.flops for one in statuses), f"{ended} of {len(statuses)} models trained; {running}"


def _run_status(storage: DirFileSystem, training: Training) -> RunStatus:
    folder = f"models/{training.name}"
    problems: list[str] = []

    def read(name: str, parse: Callable[[str, str], T]) -> T | None:
        """Parse a file. Return None if it is missing or damaged, and note damage."""
        path = f"{folder}/{name}"
        try:
            text = read_text(storage, path)
            return None if text is None else parse(text, path)
        except ValueError as problem:
            problems.append(told(problem))
            return None

    history = read(HISTORY, parse_history) or []

    def row_of(budget: int) -> dict[str, Any] | None:
        def parse(text: str, path: str) -> dict[str, Any]:
            row = parse_row(text, path)
            check_row(row, training, budget, folder, history, path)
            return row

        return read(row_file(budget), parse)

    rows = [row for row in map(row_of, training.recipe.budgets_tokens) if row is not None]
    attempts = read(ATTEMPTS, parse_attempts) or []
    try:
        logged = _last_lines(storage, f"{folder}/metrics.jsonl")
    except Damaged as problem:
        problems.append(told(problem))
        logged = []
    state, why = _state(len(rows) == len(training.recipe.budgets_tokens), attempts, bool(logged))
    share = 1.0 if state == DONE else logged[-1]["steps_done"] / training.recipe.total_steps if logged else 0.0
    return RunStatus(
        model=training.name,
        state=state,
        activity=running_text(attempts, bool(logged)) if state == RUNNING else "",
        rows=tuple(rows),
        runs=len(training.recipe.budgets_tokens),
        share=min(share, 1.0),
        flops=work(training),
        phase=phase_text(training.recipe, logged[-1]["phase"]) if logged else "",
        loss=number(logged[-1]["loss"]) if logged else None,
        attempts=len(attempts),
        where=attempts[-1].where if attempts else "",
        why=" ".join(filter(None, (*problems, why))),
        damaged=tuple(problems),
        device_seconds=device_seconds(attempts),
        seconds_left=_seconds_left(logged, training.recipe.total_steps) if state == RUNNING else None,
    )


def _state(has_rows: bool, attempts: Sequence[Attempt], has_logged: bool) -> tuple[str, str]:
    """Return the state and its reason. The lock is not visible on other machines, so a training run counts as running
    if its last update is recent.
    """
    if has_rows:
        return DONE, ""
    if not attempts:
        return WAITING, ""
    last, silent = attempts[-1], time.time() - attempts[-1].until
    if last.state != RUNNING:
        return FAILED if last.state == FAILED else INTERRUPTED, last.why
    if silent < SILENT_SECONDS.get(last.activity, SILENT_SECONDS[STEPPING]):
        return RUNNING, ""
    when = ", ".join(filter(None, (f"{silent / 60:.0f} minutes ago", last.moment(has_logged))))
    return INTERRUPTED, f"its last update was {when} ({last.where})."


def _last_lines(storage: DirFileSystem, path: str) -> list[dict[str, Any]]:
    """Parse the last lines of a log.

    Raises:
      Damaged: one of the last lines is not a valid log line.
    """
    try:
        check_regular(storage, path)
        tail = storage.cat_file(path, start=-_TAIL_BYTES)
    except Damaged:
        raise
    except (FileNotFoundError, ValueError):
        return []
    return parse_lines(tail, path, whole=False)


def _seconds_left(logged: Sequence[Mapping[str, Any]], total_steps: int) -> float | None:
    phase = [line for line in logged if line["phase"] == logged[-1]["phase"]]
    if len(phase) < 2:
        return None
    steps, seconds = (phase[-1][name] - phase[0][name] for name in ("steps_done", "seconds"))
    return (total_steps - phase[-1]["steps_done"]) * seconds / steps if steps > 0 else None
