"""How a training stands, running or not, from the files in its folder alone."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.folder import has_writer
from moejax.stored import Missing, Unreadable, read_json
from moejax.train.attempts import (
    DONE,
    INTERRUPTED,
    RUNNING,
    WAITING,
    Attempt,
    goodput,
    read_attempts,
    seconds_by_bucket,
)
from moejax.train.identity import REMEDY, RUNS, TRAINING
from moejax.train.manifest import COMMITTED, finished_steps, validation_losses
from moejax.train.metrics import TRUNK, last_lines, number
from moejax.train.row_file import read_rows, row_file

RECENT_LINES = 10
"""Lines of the log over which the present speed is taken."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is known of a training. What is not yet known is None."""

    name: str
    folder: str
    state: str
    """One of ``moejax.train.attempts.STATES``."""
    why: str
    """It was interrupted, or failed."""
    phase: str | None
    step: int | None
    """Of the phase's whole way, the trunk's part included."""
    steps_done: int
    """Over trunk and branches."""
    total_steps: int | None
    tokens: int | None
    """Up to ``step``."""
    budget_tokens: int
    """That the phase leads to; of the trunk, the largest."""
    loss: float | None
    """Of the last logged batch, nats per token."""
    validation_loss: float | None
    tokens_per_second: float | None
    """Over the last lines of the log."""
    mfu: float | None
    eta_seconds: float | None
    """At that speed, while it runs."""
    silent_seconds: float | None
    """Since its last sign of life."""
    last_checkpoint: dict[str, Any] | None
    """``phase``, ``step`` and ``age_seconds`` of the newest one that is whole."""
    best_checkpoint: dict[str, Any] | None
    """``phase``, ``step`` and ``validation_loss`` of the one with the lowest, of those that were measured."""
    skipped_steps: int | None
    attempts: int
    """How often it was started."""
    goodput: float | None
    seconds: dict[str, float]
    """By time bucket, over all attempts: ``moejax.train.attempts``."""
    memory_bytes: int | None
    memory_peak_bytes: int | None
    layers: dict[str, list[Any]] | None
    """Statistics of every mixture layer's routing in the last logged batch; ``layer`` has their numbers from 0. As in
    all of a log, what is not finite is text."""
    rows: list[dict[str, Any]]
    """``tokens`` and ``loss`` of the budgets that are trained."""


def read_status(folder: Path) -> Status:
    """The status of a training's folder.

    Raises:
      UserError: it holds no training.
    """
    try:
        training = read_training(folder)
    except Missing:
        raise UserError(
            f"{folder} holds no training (there is no {TRAINING}); start one with moejax train --config=FILE.py."
        ) from None
    axes = training.get("vmap")
    if isinstance(axes, dict) and any(axes.values()):
        raise UserError(f"{folder} is of several vmapped runs; name one of them, a folder in {folder / RUNS}.")
    budgets = training["recipe"]["budgets_tokens"]
    attempts = read_attempts(folder)
    lines = last_lines(folder / "metrics.jsonl", RECENT_LINES)
    last = lines[-1] if lines else {}
    phase = last.get("phase")
    rows = read_rows(folder, training)
    missing = [budget for budget, row in zip(budgets, rows, strict=True) if row is None]
    state, why = _state(folder, missing, attempts)
    total = sum(attempts[-1].phases.values()) if attempts else None
    done = total if state == DONE and total else last.get("steps_done", 0)
    seconds_per_step, tokens_per_second = _speed([line for line in lines if line["phase"] == phase])
    left = None
    if state == RUNNING and seconds_per_step is not None and total is not None:
        left = (total - done) * seconds_per_step
    measured = [line["validation_loss"] for line in lines if "validation_loss" in line]
    return Status(
        name=training["name"],
        folder=str(folder),
        state=state,
        why=why,
        phase=phase,
        step=last.get("step"),
        steps_done=done,
        total_steps=total,
        tokens=last.get("tokens"),
        budget_tokens=max(budgets) if phase in (None, TRUNK) else int(phase.rpartition("-")[2]),
        loss=_number(last.get("loss")),
        validation_loss=_number(measured[-1]) if measured else None,
        tokens_per_second=tokens_per_second,
        mfu=_number(last.get("mfu")),
        eta_seconds=left,
        silent_seconds=max(0.0, time.time() - attempts[-1].until) if attempts else None,
        last_checkpoint=_last_checkpoint(folder, phase),
        best_checkpoint=_best_checkpoint(folder),
        skipped_steps=int(number(last["skipped_steps"])) if "skipped_steps" in last else None,
        attempts=len(attempts),
        goodput=goodput(attempts),
        seconds=seconds_by_bucket(attempts),
        memory_bytes=last.get("memory_bytes"),
        memory_peak_bytes=last.get("memory_peak_bytes"),
        layers=last.get("layers"),
        rows=[{name: row.get(name) for name in ("tokens", "loss", "bits_per_byte")} for row in rows if row is not None],
    )


def read_training(folder: Path) -> dict[str, Any]:
    """What a training's folder says of it: ``name``, ``recipe`` and the rest, as plain data."""
    # Not the type itself, which needs JAX.
    shape = {"name": str, "recipe": {"budgets_tokens": list[int], "batch_tokens": int}}
    return read_json(folder / TRAINING, shape, remedy=REMEDY)


def read_statuses(folder: Path) -> list[Status]:
    """Of a training's folder, or of every model in that of a study.

    Raises:
      UserError: it is neither.
    """
    if is_study_folder(folder):
        return [read_status(path.parent) for path in sorted((folder / "models").glob(f"*/{TRAINING}"))]
    return [read_status(folder)]


def is_study_folder(folder: Path) -> bool:
    """Whether trainings lie in its ``models/``."""
    return (folder / "study.json").exists()


def _state(folder: Path, missing: Sequence[int], attempts: Sequence[Attempt]) -> tuple[str, str]:
    if has_writer(folder):
        return RUNNING, ""
    if not missing:
        return DONE, ""
    if not attempts:
        return WAITING, ""
    last = attempts[-1]
    if last.state == RUNNING:
        return INTERRUPTED, "its process is gone, and said nothing; the same command goes on"
    if last.state == DONE:
        return INTERRUPTED, f"done, but {row_file(missing[0])} is gone; the same command makes it again"
    return last.state, last.why


def _number(value: float | str | None) -> float | None:
    return None if value is None else number(value)


def _speed(lines: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Seconds per step and tokens per second between the first and the last of some lines of one phase."""
    if not lines:
        return None, None
    first, last = lines[0], lines[-1]
    seconds = last["seconds"] - first["seconds"]
    steps = last["step"] - first["step"]
    if seconds <= 0 or steps <= 0:
        return None, _number(last.get("tokens_per_second"))
    return seconds / steps, (last["tokens"] - first["tokens"]) / seconds


def _last_checkpoint(folder: Path, phase: str | None) -> dict[str, Any] | None:
    """Of the present phase, or else, as before its first one, of the trunk."""
    for name in (phase, TRUNK):
        place = folder / "checkpoints" / str(name)
        # One may be removed meanwhile.
        with contextlib.suppress(OSError):
            steps = finished_steps(place)
            if steps:
                age = time.time() - (place / str(steps[-1]) / COMMITTED).stat().st_mtime
                return {"phase": name, "step": steps[-1], "age_seconds": max(0.0, age)}
    return None


def interrupted_text(folders: Sequence[Path]) -> str:
    """What a person is told of trainings that were stopped while no step was taken: how much of them is saved."""
    phases = [path for folder in folders for path in (folder / "checkpoints").glob("*") if path.name != "damaged"]
    saved = [phase / str(steps[-1]) for phase in phases if (steps := finished_steps(phase))]
    if not saved:
        return "Stopped before the first checkpoint: no step is saved, and the same command begins again."
    newest = max(saved, key=lambda path: (path / COMMITTED).stat().st_mtime)
    return (
        f"Stopped while no step was taken; the newest checkpoint is that of step {int(newest.name):,} of "
        f"{newest.parent.name}, and the same command goes on from there."
    )


def _best_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The checkpoint with the lowest validation loss of all that were saved with one."""
    phases = [path for path in (folder / "checkpoints").glob("*") if path.name != "damaged"]
    found = []
    for phase in phases:
        with contextlib.suppress(OSError, Unreadable):
            found += [(loss, phase.name, step) for step, loss in validation_losses(phase).items()]
    if not found:
        return None
    loss, phase, step = min(found)
    return {"phase": phase, "step": step, "validation_loss": loss}
