"""Report the status of a training run, running or not, from the files in its folder only."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.errors import UserError
from moejax.folder import has_writer
from moejax.stored import Damaged, Missing, read_json
from moejax.train.directory.attempts import (
    DONE,
    INTERRUPTED,
    RUNNING,
    WAITING,
    Attempt,
    goodput,
    read_attempts,
    running_text,
    seconds_by_bucket,
)
from moejax.train.directory.identity import REMEDY, RUNS, TRAINING
from moejax.train.directory.manifest import committed_at, finished_checkpoints, validation_losses
from moejax.train.directory.metrics import TRUNK, VALIDATION_LOSS, is_phase, last_lines, number, source_losses
from moejax.train.directory.row_file import read_rows, row_file

RECENT_LINES = 10
"""Number of the last log lines from which the current speed is measured."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Status of a training run. Unknown values are None."""

    name: str
    folder: str
    state: str
    """One of ``moejax.train.directory.attempts.STATES``."""
    why: str
    """Reason for an interruption or a failure."""
    activity: str
    """Activity of a running training run, such as ``compiling``; empty while it logs steps, or if it is not running."""
    phase: str | None
    """Phase of the last step, which is the last logged step or, if it is later, that of the newest checkpoint."""
    step: int | None
    """Last step of the phase. Steps of a branch are counted from the start of the trunk."""
    metrics_missing: bool
    """True if the log has no line although there is a checkpoint of a logged step."""
    steps_done: int
    """Number of steps done in trunk and branches."""
    total_steps: int | None
    tokens: int | None
    """Number of tokens read up to ``step``."""
    budget_tokens: int
    """Budget at which the phase ends. For the trunk, the largest budget."""
    loss: float | None
    """Loss of the last logged batch, in nats per token."""
    last_validation: dict[str, Any] | None
    """``phase``, ``step`` and ``loss`` of the last evaluation in the log; with several sources also ``sources``, the
    loss of each. Those of finished budgets are in ``rows``.
    """
    tokens_per_second: float | None
    """Speed in the last lines of the log."""
    mfu: float | None
    eta_seconds: float | None
    """Remaining time at the current speed; None unless the run is running."""
    silent_seconds: float | None
    """Time since the last update."""
    last_checkpoint: dict[str, Any] | None
    """``phase``, ``step`` and ``age_seconds`` of the newest committed checkpoint."""
    best_checkpoint: dict[str, Any] | None
    """``phase``, ``step`` and ``validation_loss`` of the evaluated checkpoint with the lowest loss."""
    skipped_steps: int | None
    attempts: int
    """Number of attempts."""
    goodput: float | None
    seconds: dict[str, float]
    """Seconds over all attempts, keyed by time bucket (``moejax.train.directory.attempts.TIME_BUCKETS``)."""
    memory_bytes: int | None
    memory_peak_bytes: int | None
    layers: dict[str, list[Any]] | None
    """Routing statistics of every MoE layer in the last logged batch; ``layer`` lists the layer indices, counted from
    0. As in the log, non-finite values are text.
    """
    rows: list[dict[str, Any]]
    """``tokens``, ``loss``, ``bits_per_byte`` and ``sources`` (the loss of each source) of the finished budgets."""


def read_status(folder: Path) -> Status:
    """Return the status of a training run's folder.

    Raises:
      UserError: the folder contains no training run.
    """
    try:
        training = read_training(folder)
    except Missing:
        if not folder.exists() or (folder.is_dir() and all(one.name.startswith(".") for one in folder.iterdir())):
            raise UserError(
                f"{folder} {'is empty' if folder.exists() else 'does not exist'}. A training run writes its settings "
                "there a few seconds after its start; run this command again, or check the path."
            ) from None
        raise UserError(
            f"{folder} is not the folder of a training run (it has no {TRAINING}); start a run with moejax train "
            "--config=FILE.py."
        ) from None
    if _is_vmapped(training):
        raise UserError(f"{folder} contains several vmapped runs; name the folder of one of them in {folder / RUNS}.")
    budgets = training["recipe"]["budgets_tokens"]
    attempts = read_attempts(folder)
    # Read the checkpoints before the log, because a running training logs a step before it saves the step.
    checkpoint = _last_checkpoint(folder)
    lines = last_lines(folder / "metrics.jsonl", RECENT_LINES)
    last = lines[-1] if lines else {}
    metrics_missing = checkpoint is not None and not last and _was_logged(checkpoint, training["recipe"])
    if checkpoint is not None and _is_after(checkpoint, last):
        last = {**last, **_position(folder, checkpoint)}
    phase = last.get("phase")
    rows = read_rows(folder, training)
    missing = [budget for budget, row in zip(budgets, rows, strict=True) if row is None]
    state, why = _state(folder, missing, attempts, bool(last))
    total = sum(attempts[-1].phases.values()) if attempts else None
    done = total if state == DONE and total else last.get("steps_done", 0)
    seconds_per_step, tokens_per_second = _speed([line for line in lines if line["phase"] == phase])
    left = None
    if state == RUNNING and seconds_per_step is not None and total is not None:
        left = (total - done) * seconds_per_step
    return Status(
        name=training["name"],
        folder=str(folder),
        state=state,
        why=why,
        activity=running_text(attempts, bool(last)) if state == RUNNING else "",
        phase=phase,
        step=last.get("step"),
        metrics_missing=metrics_missing,
        steps_done=done,
        total_steps=total,
        tokens=last.get("tokens"),
        budget_tokens=max(budgets) if phase in (None, TRUNK) else int(phase.rpartition("-")[2]),
        loss=_number(last.get("loss")),
        last_validation=_last_validation(folder, training),
        tokens_per_second=tokens_per_second,
        mfu=_number(last.get("mfu")),
        eta_seconds=left,
        silent_seconds=max(0.0, time.time() - attempts[-1].until) if attempts else None,
        last_checkpoint=checkpoint,
        best_checkpoint=_best_checkpoint(folder),
        skipped_steps=int(number(last["skipped_steps"])) if "skipped_steps" in last else None,
        attempts=len(attempts),
        goodput=goodput(attempts),
        seconds=seconds_by_bucket(attempts),
        memory_bytes=last.get("memory_bytes"),
        memory_peak_bytes=last.get("memory_peak_bytes"),
        layers=last.get("layers"),
        rows=[
            {**{name: row.get(name) for name in ("tokens", "loss", "bits_per_byte")}, **_sources(row, "loss")}
            for row in rows
            if row is not None
        ],
    )


def read_training(folder: Path) -> dict[str, Any]:
    """Return a training run's settings from its folder as plain data, keyed as in ``training.json``."""
    # Do not build a ``Training``, because that class needs JAX.
    shape = {"name": str, "recipe": {"budgets_tokens": list[int], "batch_tokens": int}}
    return read_json(folder / TRAINING, shape, remedy=REMEDY)


def read_statuses(folder: Path) -> list[Status]:
    """Return the status of a training run's folder, of every model in a study's folder, or of every vmapped run.

    Raises:
      UserError: the folder contains neither.
    """
    if (runs := _runs_folder(folder)) is not None:
        return [read_status(path.parent) for path in sorted(runs.glob(f"*/{TRAINING}"))]
    return [read_status(folder)]


def has_several_runs(folder: Path) -> bool:
    """Return whether the folder belongs to a study or to vmapped runs, each with a folder of its own."""
    return _runs_folder(folder) is not None


def _runs_folder(folder: Path) -> Path | None:
    if (folder / "study.json").exists():
        return folder / "models"
    if (folder / TRAINING).exists() and _is_vmapped(read_training(folder)):
        return folder / RUNS
    return None


def _is_vmapped(training: dict[str, Any]) -> bool:
    axes = training.get("vmap")
    return isinstance(axes, dict) and any(axes.values())


def _state(folder: Path, missing: Sequence[int], attempts: Sequence[Attempt], has_logged: bool) -> tuple[str, str]:
    if has_writer(folder):
        return RUNNING, ""
    if not missing:
        return DONE, ""
    if not attempts:
        return WAITING, ""
    last = attempts[-1]
    if last.state == RUNNING:
        how = last.moment(has_logged) or "without a record"
        return INTERRUPTED, f"its process ended {how}; run the same command again to resume"
    if last.state == DONE:
        return INTERRUPTED, f"done, but {row_file(missing[0])} is missing; run the same command again to write it"
    return last.state, last.why


def _number(value: float | str | None) -> float | None:
    return None if value is None else number(value)


def _speed(lines: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Return seconds per step and tokens per second over ``lines``, all of one phase."""
    if not lines:
        return None, None
    seconds, steps, tokens = (lines[-1][name] - lines[0][name] for name in ("seconds", "step", "tokens"))
    if seconds <= 0 or steps <= 0:
        return None, _number(lines[-1].get("tokens_per_second"))
    return seconds / steps, tokens / seconds


def _last_validation(folder: Path, training: dict[str, Any]) -> dict[str, Any] | None:
    # Without evaluations, the search would read the whole log.
    measures = training["recipe"].get("evaluate_tokens")
    lines = last_lines(folder / "metrics.jsonl", 1, VALIDATION_LOSS) if measures else []
    if not lines:
        return None
    line = lines[0]
    sources = _sources(line, VALIDATION_LOSS)
    return {"phase": line["phase"], "step": line["step"], "loss": number(line[VALIDATION_LOSS]), **sources}


def _sources(values: dict[str, Any], field: str) -> dict[str, dict[str, float]]:
    sources = source_losses(values, field)
    return {"sources": sources} if sources else {}


def _last_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the last checkpoint of the phase that was saved last."""
    times = {}
    for place in {one.parent.name: one for one in finished_checkpoints(folder) if is_phase(one.parent.name)}.values():
        # A checkpoint may be removed meanwhile, or have no time of its own.
        with contextlib.suppress(OSError, Damaged, TypeError):
            committed = committed_at(place)
            times[place] = committed if math.isfinite(committed) else place.stat().st_mtime
    if not times:
        return None
    last = max(times, key=lambda place: times[place])
    return {"phase": last.parent.name, "step": int(last.name), "age_seconds": max(0.0, time.time() - times[last])}


def _is_after(checkpoint: dict[str, Any], last: dict[str, Any]) -> bool:
    return not last or (checkpoint["phase"] == last["phase"] and checkpoint["step"] > last["step"])


def _was_logged(checkpoint: dict[str, Any], recipe: dict[str, Any]) -> bool:
    """Return whether the log has a line if the checkpoint exists. A stop may save one before the first line."""
    return checkpoint["phase"] != TRUNK or 0 < recipe.get("log_every_steps", 0) <= checkpoint["step"]


def _position(folder: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return the ``phase``, ``step``, ``tokens`` and ``steps_done`` of a checkpoint, as a log line has them."""
    # This imports JAX, but only if the checkpoint is later than the log.
    from moejax.train.training import Training, phases

    phase, step = checkpoint["phase"], checkpoint["step"]
    try:
        training = read_json(folder / TRAINING, Training, remedy=REMEDY)
    except UserError:  # of another version
        return {"phase": phase, "step": step, "tokens": None}
    trunk, branches = phases(training)
    done = [one.steps_done(step) for one in (trunk, *branches) if one.name == phase]
    return {"phase": phase, "step": step, "tokens": training.recipe.tokens(step), "steps_done": done[0] if done else 0}


def _best_checkpoint(folder: Path) -> dict[str, Any] | None:
    phases = {place.parent for place in finished_checkpoints(folder)}
    measured = [(loss, phase.name, step) for phase in phases for step, loss in validation_losses(phase).items()]
    if not measured:
        return None
    loss, phase, step = min(measured)
    return {"phase": phase, "step": step, "validation_loss": loss}
