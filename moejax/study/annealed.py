"""Predict annealed losses, which are the losses of branches that were not trained, from a study's loss curves
(``analysis.anneal``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import pandas as pd

from moejax import run_table
from moejax.curves.annealed import LEAST_BRANCHES, LEVEL, AnnealedLosses, Branch, LeftOut, anneal
from moejax.curves.loss_curves import curve_law
from moejax.curves.read_curves import LossCurve
from moejax.errors import UserError
from moejax.folder import check_replaceable, noted, outputs_of, sha256
from moejax.laws.accounting import flops_per_token
from moejax.say import ProgressCallback
from moejax.train.directory import metrics
from moejax.train.training import Phase, Training, phases
from moejax.wording import counted, told

PREDICT = "predict"
TABLE = "annealed.parquet"
"""File in a study's folder with the rows of the run table and rows of predicted losses."""
LEAST_POINTS = 3
"""Minimum number of the trunk's validation losses between its warm-up and the first branch."""


class Anneals(Protocol):
    """The fields of a study's ``Analysis`` that concern annealed losses."""

    @property
    def anneal(self) -> str: ...
    @property
    def anneal_tokens(self) -> Sequence[int]: ...
    @property
    def anneal_law(self) -> str: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class StudyAnnealed:
    """Predicted losses of a study's models, with the prediction errors on left-out branches."""

    table: run_table.DataFrame
    """Rows of the run table and predicted rows, distinguished by ``is_predicted``."""
    models: Mapping[str, AnnealedLosses]
    not_predicted: tuple[str, ...]
    """Sentences about models without predictions, with the reasons."""

    @property
    def predicted(self) -> run_table.DataFrame:
        """The table's rows for untrained budgets."""
        return self.table[self.table["is_predicted"] == 1]

    @property
    def left_out(self) -> list[LeftOut]:
        """Predictions of left-out branches, of all models."""
        return [branch for model in self.models.values() for branch in model.left_out]

    @property
    def inside(self) -> int:
        """Number of left-out branches whose loss is inside its interval."""
        return sum(branch.inside for branch in self.left_out)

    @property
    def mean_error(self) -> float:
        """Mean error on left-out branches, in nats per token; NaN if there are none."""
        errors = [abs(branch.predicted.loss - branch.measured) for branch in self.left_out]
        return statistics.fmean(errors) if errors else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain data, keyed by name, such as ``predicted`` and ``errors``."""
        names = ["model", "tokens", "loss", "loss_low", "loss_high", "loss_standard_error"]
        return {
            "level": LEVEL,
            "summary": {"branches": len(self.left_out), "inside": self.inside, "mean_error": self.mean_error},
            "predicted": self.predicted[names] if len(self.predicted) else [],
            "errors": {name: model.summary for name, model in self.models.items()},
            "left_out": {name: [_left_out(one) for one in model.left_out] for name, model in self.models.items()},
            "laws": {name: model.fit.to_json()["law"] for name, model in self.models.items()},
            "not_predicted": self.not_predicted,
        }


def _left_out(branch: LeftOut) -> dict[str, Any]:
    loss = branch.predicted
    ends = {"predicted": loss.loss, "low": loss.low, "high": loss.high}
    return {"name": branch.name, "measured": branch.measured, **ends, "interpolated": branch.interpolated}


def check(analysis: Anneals, trainings: Sequence[Training]) -> None:
    """Raise ``UserError`` before training if the training runs do not support the requested annealed losses."""
    if not analysis.anneal:
        if analysis.anneal_tokens:
            raise UserError(
                f"analysis.anneal_tokens names budgets for predicted losses, but analysis.anneal is empty; set it to "
                f'"{PREDICT}", or remove analysis.anneal_tokens.'
            )
        return
    curve_law(analysis.anneal_law)
    if list(analysis.anneal_tokens) != sorted(set(analysis.anneal_tokens)) or not analysis.anneal_tokens:
        raise UserError(
            f"analysis.anneal_tokens is {list(analysis.anneal_tokens)}; list each budget once, in ascending order."
        )
    for training in trainings:
        _check_recipe(training)
        for budget in analysis.anneal_tokens:
            _check_budget(training, budget)
        if doubled := training.recipe.of_one_step(analysis.anneal_tokens):
            raise UserError(
                f"analysis.anneal_tokens has {doubled[0]:,} and {doubled[1]:,}, which are the same budget for "
                f"{training.name}: {_in_steps(training, doubled[0])}; list only one of them."
            )
    for budget in analysis.anneal_tokens:
        trained = [training for training in trainings if budget not in _asked(training, analysis)]
        if len(trained) == len(trainings):
            raise UserError(
                f"analysis.anneal_tokens has {budget:,}, which is {_in_steps(trained[0], budget)}, but all models "
                f"are already trained to this budget; remove it."
            )


def _check_recipe(training: Training) -> None:
    recipe, name = training.recipe, training.name
    optimizer = recipe.optimizer
    whys = {
        f"recipe.evaluate_tokens is 0, so the trunk has no validation losses; set it to a small part of the shortest "
        f"budget, {recipe.budgets_tokens[0]:,} tokens": not recipe.evaluate_tokens,
        "optimizer.decay_share is 1, so the learning rate has no constant part, as in a cosine schedule; lower "
        "decay_share, for example to 0.2": optimizer.decay_share == 1,
        "optimizer.final_share is 1, so the learning rate never falls; lower final_share": optimizer.final_share == 1,
        f"recipe.budgets_tokens has {len(recipe.budgets_tokens)} budgets; train at least {LEAST_BRANCHES}, so that "
        "each can be predicted from the others": len(recipe.budgets_tokens) < LEAST_BRANCHES,
        "recipe.batch_ramp changes the batch size, but curve laws sum over updates of equal batch size; remove it": (
            bool(recipe.batch_ramp)
        ),
        "data.decay_mixture changes the text during learning-rate decay, but curve laws model only the learning rate; "
        "remove it": bool(recipe.data.decay_mixture),
    }
    if why := next((why for why, wrong in whys.items() if wrong), ""):
        raise UserError(f"analysis.anneal predicts from the trunk and branches of {name}: {why}.")


def _in_steps(training: Training, budget: int) -> str:
    recipe, steps = training.recipe, training.recipe.steps(budget)
    return f"{steps:,} steps of {recipe.batch_tokens:,} tokens ({recipe.tokens(steps):,} tokens)"


def _check_budget(training: Training, budget: int) -> None:
    recipe, name, every = training.recipe, training.name, training.recipe.evaluate_steps
    longest = max(recipe.budgets_tokens)
    if recipe.steps(budget) < 2:
        raise UserError(
            f"analysis.anneal_tokens has {budget:,}, which is less than two steps of {name} with batches of "
            f"{recipe.batch_tokens:,} tokens. A branch needs a step on the trunk and a decay step; name budgets "
            "between the trained budgets."
        )
    start = recipe.decay_start(budget)
    if start > recipe.trunk_steps:
        raise UserError(
            f"analysis.anneal_tokens has {budget:,}, but the longest budget of {name} is {longest:,}, so its trunk "
            f"ends before a branch to {budget:,} could start. Name budgets up to {longest:,}, or train a longer "
            "budget."
        )
    measured = max(start // every - -(-recipe.warmup_steps // every) + 1, 0)
    if measured < LEAST_POINTS:
        raise UserError(
            f"analysis.anneal_tokens has {budget:,}, whose branch would leave the trunk of {name} at step {start:,}. "
            f"Between the end of the warm-up at step {recipe.warmup_steps:,} and this step, the trunk has "
            f"{counted(measured, 'measurement')}, but {LEAST_POINTS} are needed. Name larger budgets, or lower "
            f"recipe.evaluate_tokens (now {counted(every, 'step')})."
        )


def _asked(training: Training, analysis: Anneals) -> list[int]:
    """Return the requested budgets without a trained branch of the model."""
    recipe = training.recipe
    trained = {recipe.steps(budget) for budget in recipe.budgets_tokens}
    return [budget for budget in analysis.anneal_tokens if recipe.steps(budget) not in trained]


def conclude_annealed(
    trainings: Sequence[Training],
    analysis: Anneals,
    folder: Path,
    update: ProgressCallback = lambda share, text: None,
) -> StudyAnnealed | None:
    """Predict the annealed losses that a study requests and write their table. Return None if it requests none.

    Raises:
      UserError: a model's curve cannot be read.
    """
    if not analysis.anneal:
        if (folder / TABLE).is_file() and sha256(folder / TABLE) in noted(folder).get(TABLE, ()):
            # The table belongs to an earlier analysis that requested it.
            (folder / TABLE).unlink()
        return None
    # Read and check all inputs before the slow fits.
    check_table(analysis, folder)
    runs = run_table.read(folder / run_table.TABLE)
    runs = runs.assign(is_predicted=0)
    every = {training.name: training for training in trainings}
    curves = {
        name: read_branches(every[name], folder, runs[runs["model"] == name]) for name in dict.fromkeys(runs["model"])
    }
    models, left_out, rows = {}, [], []
    for number, (name, (trunk, branches)) in enumerate(curves.items()):
        update(number / len(curves), f"annealed losses of {name}")
        try:
            model = anneal(trunk, branches, analysis.anneal_law, seed=analysis.seed)
        except ValueError as error:
            left_out.append(f"Annealed losses of {name} are not predicted: {told(error)}")
            continue
        models[name] = model
        rows += _rows(every[name], runs[runs["model"] == name], model, _asked(every[name], analysis))
    table = pd.concat([runs, pd.DataFrame(rows)], ignore_index=True) if rows else runs
    with outputs_of(folder):
        run_table.write(table, folder / TABLE)
    return StudyAnnealed(table=table, models=models, not_predicted=tuple(left_out))


def check_table(analysis: Anneals, folder: Path) -> None:
    """Raise ``UserError`` if annealed losses are requested and their table cannot be replaced."""
    if analysis.anneal:
        with outputs_of(folder):
            check_replaceable(folder / TABLE)


def read_branches(training: Training, folder: Path, runs: run_table.DataFrame) -> tuple[LossCurve, list[Branch]]:
    """Read validation losses of a model's trunk and branches. The last loss of each branch comes from the run table.

    Raises:
      UserError: the log is missing, has no validation losses, or has validation losses of another training run.
    """
    path = folder / "models" / training.name / "metrics.jsonl"
    lines = [line for line in metrics.read(path) if "validation_loss" in line]
    trunk, branches = phases(training)
    ends = dict(zip(runs["tokens"].astype(int), runs["loss"].astype(float), strict=True))
    curves = []
    for phase in (trunk, *branches):
        measured = {
            line["step"]: metrics.number(line["validation_loss"]) for line in lines if line["phase"] == phase.name
        }
        if phase is not trunk:
            tokens = training.recipe.tokens(phase.end)
            if tokens not in ends:
                continue
            measured[phase.end] = ends[tokens]
        if beyond := [step for step in measured if not phase.start < step <= phase.end]:
            raise UserError(
                f"{path} has a validation loss of {phase.name} at step {beyond[0]:,}, but {phase.name} has steps "
                f"{phase.start + 1:,} to {phase.end:,}. The file was changed or belongs to another training run. Copy "
                "it again from the machine that trained the model, or leave analysis.anneal empty."
            )
        curves.append((phase, curve_of(training, phase, measured)))
    (_, of_trunk), *rest = curves
    if np.sum(of_trunk.steps >= of_trunk.warmup_steps) < LEAST_POINTS:
        raise UserError(
            f"{path} has no validation losses of the trunk of {training.name}, which analysis.anneal needs. Copy "
            "the file again from the machine that trained the model, or leave analysis.anneal empty."
        )
    return of_trunk, [Branch(start=phase.start, curve=curve) for phase, curve in rest]


def curve_of(training: Training, phase: Phase, measured: Mapping[int, float]) -> LossCurve:
    """Return a phase's loss curve: the learning rates from the first update on, and the measured losses."""
    steps = np.array(sorted(measured), np.int64)
    rates = jax.vmap(phase.schedule.learning_rate)(np.arange(phase.end))
    return LossCurve(
        name=f"{training.name}/{phase.name}",
        rates=np.asarray(rates, np.float64),
        steps=steps,
        loss=np.array([measured[step] for step in steps.tolist()], np.float64),
    )


def _rows(
    training: Training, runs: run_table.DataFrame, annealed: AnnealedLosses, asked: Sequence[int]
) -> list[dict[str, Any]]:
    """Return rows for untrained budgets: predicted losses, and the columns that are equal in all rows of the model."""
    recipe, first = training.recipe, runs.iloc[0]
    shared = {name: first[name] for name in runs if runs[name].nunique(dropna=False) == 1}
    _, branches = phases(replace(training, recipe=replace(recipe, budgets_tokens=tuple(asked))))
    per_token = flops_per_token(training.architecture, recipe.data.sequence_length).training
    rows = []
    for phase in branches:
        predicted = annealed.predict(Branch(start=phase.start, curve=curve_of(training, phase, {})))
        tokens = recipe.tokens(phase.end)
        rows.append(
            {
                **shared,
                "tokens": tokens,
                "flops": tokens * per_token,
                "decay_tokens": tokens - recipe.tokens(phase.start),
                "loss": predicted.loss,
                "loss_low": predicted.low,
                "loss_high": predicted.high,
                "loss_standard_error": predicted.standard_error,
                "is_predicted": 1,
            }
        )
    return rows
