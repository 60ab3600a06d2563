"""Read tables for figures from files of other commands: attempts, expert loads, losses, scores and plans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moejax import run_table
from moejax.errors import UserError
from moejax.folder import has_writer
from moejax.plan.step_time import Roofline
from moejax.report.findings import layer_loads
from moejax.run_sources.source import kind_of
from moejax.run_table import TABLE
from moejax.stored import foreign_json, read_json
from moejax.study.downstream import TABLE as SCORES
from moejax.train.directory import metrics
from moejax.train.directory.attempts import RUNNING, Attempt, read_attempts
from moejax.train.directory.identity import TRAINING
from moejax.train.directory.row_file import read_rows
from moejax.train.directory.status import read_training

SMOOTH = 50
"""Ratio of a log's tokens to the half-life of its smoothed loss."""
KILLED = "killed"
"""Outcome of an attempt that is recorded as running but has ended."""


def trainings(folder: Path) -> list[Path]:
    """Return the sorted folders of a study's training runs, or the folder itself if it is a training run."""
    models = folder / "models"
    return sorted(child for child in models.iterdir() if child.is_dir()) if models.is_dir() else [folder]


def attempts_table(folder: Path) -> pd.DataFrame:
    """Return all attempts of a folder with columns ``model, start_seconds, end_seconds, outcome, lost_seconds``.

    ``lost_seconds`` is the time that the next attempt spent on repeated steps.

    Raises:
      UserError: no training run in the folder has recorded its attempts.
    """
    rows = []
    for training in trainings(folder):
        attempts = read_attempts(training)
        going_on = has_writer(training) if attempts and attempts[-1].state == RUNNING else False
        for attempt, following in zip_longest(attempts, attempts[1:]):
            rows.append(
                {
                    "model": training.name,
                    "start_seconds": attempt.began,
                    "end_seconds": attempt.until,
                    "outcome": _outcome(attempt, following, going_on),
                    "lost_seconds": following.seconds.get("redone", 0.0) if following else 0.0,
                }
            )
    if not rows:
        raise UserError(
            f"No training run in {folder} has an attempts.json; name the folder of a study or a training run."
        )
    return pd.DataFrame(rows)


def _outcome(attempt: Attempt, following: Attempt | None, going_on: bool) -> str:
    if attempt.state != RUNNING:
        return attempt.state
    return RUNNING if following is None and going_on else KILLED


def loads_table(folder: Path) -> pd.DataFrame:
    """Return expert loads of one training run at every token budget, with columns ``layer, expert, tokens, load``.

    Layers are counted from 0, experts from 1.

    Raises:
      UserError: no row has expert loads.
    """
    rows = []
    if (folder / TRAINING).exists():
        training = read_training(folder)
        every = read_rows(folder, training)
        rows = [row for row in every if row is not None]
    cells = [
        {"layer": layer, "expert": expert + 1, "tokens": float(row["tokens"]), "load": load}
        for row in rows
        for layer, loads in layer_loads(row).items()
        for expert, load in enumerate(loads)
    ]
    if not cells:
        what = "results of an MoE model" if rows else "results of a training run"
        raise UserError(f"{folder} has no {what}; give the folder of an MoE training run (in a study, under models/).")
    return pd.DataFrame(cells)


def losses_table(*folders: Path) -> pd.DataFrame:
    """Return the losses of training runs, with columns ``run, phase, tokens, loss, smoothed, validation_loss``.

    A branch starts at the trunk's last log line before it. ``loss`` is the training loss of single batches;
    ``smoothed`` is its exponential moving average along trunk and branch, with a half-life of a fiftieth of the tokens.

    Args:
      folders: folders of training runs or studies.

    Raises:
      UserError: a folder has no training log.
    """
    parts = []
    for folder in folders:
        logs = {one: metrics.read(one / "metrics.jsonl") for one in trainings(folder)}
        logs = {one: lines for one, lines in logs.items() if lines}
        if not logs:
            raise UserError(
                f"{folder} has no metrics.jsonl of a training run; name the folder of a training run or a study."
            )
        for training, lines in logs.items():
            name = training.name if len(folders) == 1 else str(training)
            parts += [_losses(lines, phase).assign(run=name) for phase in dict.fromkeys(one["phase"] for one in lines)]
    return pd.concat(parts, ignore_index=True)


def _losses(lines: list[dict[str, Any]], phase: str) -> pd.DataFrame:
    every = metrics.history(lines, phase)
    own = [line["phase"] == phase for line in every]
    tokens, loss = (np.array([metrics.number(line[name]) for line in every]) for name in ("tokens", "loss"))
    validation = [metrics.number(line.get("validation_loss", math.nan)) for line in every]
    table = pd.DataFrame(
        {
            "phase": phase,
            "tokens": tokens,
            "loss": loss,
            "smoothed": _smoothed(tokens, loss),
            "validation_loss": validation,
        }
    )
    return table.iloc[max(0, own.index(True) - 1) :]


def _smoothed(tokens: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """Return the exponential moving average of losses over tokens. A loss counts by the tokens since the line before
    it, because a log has additional lines, for example at evaluations."""
    if len(tokens) < 2:
        return loss
    gaps = np.diff(tokens, prepend=np.nan)
    gaps[0] = np.nanmedian(gaps)
    half_life = max(float(np.median(gaps)), float(np.ptp(tokens)) / SMOOTH)
    total, weight, smoothed = 0.0, 0.0, []
    for gap, one in zip(gaps, loss, strict=True):
        decay = 0.5 ** (gap / half_life)
        total, weight = total * decay, weight * decay
        if math.isfinite(one):
            total, weight = total + gap * one, weight + gap
        smoothed.append(total / weight if weight else math.nan)
    return np.array(smoothed)


def plan_table(path: Path) -> pd.DataFrame:
    """Return a table of the plans in a ``plan.json``, with columns ``plan, quantity, part, value, limit``. Quantities
    are memory and seconds.

    Raises:
      UserError: ``moejax plan`` did not write the file.
    """
    return of_plan(read_json(path, _PLAN, remedy="moejax plan --out DIR writes a plan.json"))


def of_plan(data: dict[str, Any]) -> pd.DataFrame:
    """Return the table of ``plan_table`` from a plan's data."""
    others = data.get("others")
    return pd.DataFrame([row for plan in [data, *(others or [])] for row in _plan_rows(plan)])


_MEMORY = ("limit", "parameters", "optimizer_state", "temporaries", "other_state", "batch", "program")
_PLAN = {"memory": dict.fromkeys(_MEMORY, float), "mesh": dict[str, int], "microbatches": int, "remat": str}


def _plan_rows(plan: dict[str, Any]) -> list[dict[str, Any]]:
    mesh = " × ".join(f"{axis} {size}" for axis, size in plan["mesh"].items() if size > 1) or "one device"
    name = f"{mesh}\n{plan['microbatches']} microbatches, remat {plan['remat']}"
    memory = plan["memory"]
    limit = float(memory["limit"]) or float("nan")
    bytes_of = {
        "parameters": memory["parameters"],
        "optimizer": memory["optimizer_state"],
        "gradients, activations, buffers": max(memory["temporaries"], memory.get("evaluation", 0)),
        "the rest": memory["other_state"] + memory["batch"] + memory["program"],
    }
    rows = [
        {"plan": name, "quantity": "bytes", "part": part, "value": float(value), "limit": limit}
        for part, value in bytes_of.items()
    ]
    if plan["roofline"] is None or not plan["fits"]:
        return rows
    roofline = Roofline(**{field.name: plan["roofline"][field.name] for field in dataclasses.fields(Roofline)})
    overlapping = roofline.step_seconds - roofline.exposed_seconds
    seconds_of = {
        "matmuls at the peak": roofline.compute_seconds,
        "memory and links beyond them": overlapping - roofline.compute_seconds,
        "links, waited for": roofline.exposed_seconds,
    }
    return rows + [
        {"plan": name, "quantity": "seconds", "part": part, "value": value, "limit": float("nan")}
        for part, value in seconds_of.items()
    ]


def scores_table(folder: Path) -> pd.DataFrame:
    """Read the scores of a study, or of a folder in which ``moejax eval --suite --out`` wrote a file per checkpoint.

    Columns are ``model, tokens, category, task, score``, with scores in percent and the paper's task names.

    Raises:
      UserError: there are no scores, or a file lacks its model's training tokens.
    """
    if (folder / SCORES).is_file():
        return run_table.read(folder / SCORES)
    rows = []
    for path in sorted(folder.glob("*.json")):
        content = foreign_json(path.read_bytes(), path, remedy="write it again with moejax eval --suite", shape=dict)
        suite, model = content.get("suite"), content.get("model", {})
        if not suite:
            continue
        if "tokens" not in model:
            raise UserError(
                f"{path} does not contain the model's training tokens; evaluate a checkpoint of a training run instead."
            )
        at = {"model": str(model.get("name", path.stem)), "tokens": float(model["tokens"])}
        rows += [{**at, **{name: one[name] for name in ("category", "task", "score")}} for one in suite["scores"]]
    if not rows:
        raise UserError(
            f"{folder} has no scores of a suite; write scores with moejax eval CHECKPOINT --suite NAME --out "
            f"{folder}/NAME.json, or name a study with downstream tasks."
        )
    return pd.DataFrame(rows)


OF_A_FOLDER: dict[str, Callable[[Path], pd.DataFrame]] = {
    "loss": losses_table,
    "restarts": attempts_table,
    "expert-loads": loads_table,
    "tian-6": scores_table,
    "tian-15": scores_table,
    **dict.fromkeys((f"abnar-{number}" for number in (5, 10, 13, 14, 15)), scores_table),
}
"""Functions that read a figure's table from a folder, keyed by figure name."""


def run_table_of(source: Path) -> Path:
    """Return the path of a study folder's run table, or the file itself.

    Raises:
      UserError: a folder has no run table.
    """
    if not source.is_dir() or kind_of(table := run_table.table_in(source)):
        return source
    if table == source:
        raise UserError(f"{source} has no {TABLE}; name a table, or the folder of a trained study.")
    return Path(table)


def read(name: str, source: Path) -> pd.DataFrame:
    """Read the table of the figure ``name`` from a file or folder.

    Raises:
      UserError: the file or folder has no such table.
    """
    if source.is_dir() and name in OF_A_FOLDER:
        return OF_A_FOLDER[name](source)
    if name == "plan" and source.suffix == ".json":
        return plan_table(source)
    return run_table.read_as_it_is(run_table_of(source))
