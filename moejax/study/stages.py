"""Make the stages of a study: each stage's models are made from the previous stage's rows and kept in the study's
folder.

In a config, the study's models belong to the first stage. Every later stage has a function that returns its models,
given the previous stage's result::

    def wider(before):
        return dict(models={f"wide-{width}": before.architecture | dict(dense_hidden=width) for width in (64, 128)})

    config.stages = [dict(name="depth"), dict(name="width", make=wider)]

``stages/NAME.json`` keeps the models of a stage. The stage's training runs can then be resumed, launched and reported
without the config. Only stages that have not been made need it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from fsspec.implementations.dirfs import DirFileSystem

from moejax.architecture import Architecture
from moejax.config import build, dump, unknown
from moejax.errors import UserError
from moejax.ranges import Scale, Seed
from moejax.storage import open_storage, read_text
from moejax.stored import foreign_json, parse_json, refuse_another, write_json
from moejax.study.status import RunStatus, run_statuses
from moejax.study.study import Stage, Study
from moejax.wording import command, counted, listed, says, some


@dataclass(frozen=True, kw_only=True)
class StageModels:
    """Settings that a stage's function ``make`` returns."""

    models: dict[str, Architecture]
    """Architectures by name. A model of an earlier stage may occur again with the same settings; it is trained once."""
    recipes: dict[str, Any] = field(default_factory=dict)
    """Recipe settings that differ from the study's, keyed by model."""
    seeds: dict[str, Seed] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    references: tuple[str, ...] = ()
    """Models that serve as baselines and never win."""
    expected: str = ""
    """The model that a dry run assumes to win."""
    made_from: dict[str, Scale] = field(default_factory=dict)
    """Losses of the previous stage, keyed by model; the function omits this field."""

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings that determine the numbers of the stage's runs and its winner, keyed by field."""
        return {name: value for name, value in dump(self).items() if name not in ("notes", "expected")}


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The result of a stage whose runs are all done."""

    name: str
    rows: list[dict[str, Any]]
    """Rows of the run table, one for each model and budget."""
    references: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the stage's name, winner and losses as plain data, keyed by these names."""
        return {"name": self.name, "winner": self.winner, "losses": self.losses}

    @property
    def losses(self) -> dict[str, float]:
        """Loss, in nats per token, of each model's run with the most tokens."""
        last = {row["model"]: row for row in sorted(self.rows, key=lambda row: row["tokens"])}
        return {name: last[name]["loss"] for name in dict.fromkeys(row["model"] for row in self.rows)}

    @property
    def ranking(self) -> list[str]:
        """Models that may win, in ascending order of their loss."""
        losses = self.losses
        return sorted((name for name in losses if name not in self.references), key=lambda name: losses[name])

    @property
    def winner(self) -> str:
        """The model with the lowest loss that is not a reference.

        Raises:
          UserError: every model is a reference.
        """
        if not self.ranking:
            raise UserError(
                f"stages: all models of {self.name} are references, so no model can win; name fewer references."
            )
        return self.ranking[0]

    @property
    def architecture(self) -> dict[str, Any]:
        """The winner's settings, keyed by field of ``Architecture``."""
        return self.architecture_of(self.winner)

    def architecture_of(self, model: str) -> dict[str, Any]:
        """Return a model's settings, keyed by field of ``Architecture``."""
        text = next(row["architecture"] for row in self.rows if row["model"] == model)
        where = f"The column architecture of {model}'s rows"
        return foreign_json(text, where, shape=dict, remedy="remove these rows to train its runs again")


_REMEDY = "restore a copy, or remove it and give --config=FILE.py to make it again from the previous stage's rows"


def ask_for_config(before: StageResult) -> NoReturn:
    """Raise an error; this replaces a stage's function in a study that was read from a folder.

    Raises:
      UserError: always.
    """
    raise UserError(
        f"The stage after {before.name} is made by a function in the study's config, which the folder does not "
        "contain. Run again with --config=FILE.py and the same --out."
    )


def stage_file(name: str) -> str:
    """Return the path of a later stage's file in a study's folder."""
    return f"stages/{name}.json"


def stored_stages(study: Study, storage: DirFileSystem) -> Study:
    """Return a study with the stages that are stored in its folder.

    Raises:
      UserError: a stage's file is damaged.
    """
    for number, stage in enumerate(study.stages):
        if number and (stored := _stored(storage, stage)) is not None:
            study = with_models(study, number, stored)
    return study


def known_stages(study: Study, storage: DirFileSystem) -> Study:
    """Return a study with the models of every stage that the folder contains or that can be made from the folder's
    rows.

    Raises:
      UserError: a stage's function fails, returns no models, or returns models that differ from those in the folder; or
        the study was read from a folder, which has no functions.
    """
    for number, stage in enumerate(study.stages):
        if not number:
            continue
        stored, before = _stored(storage, stage), stage_result(study, number - 1, storage)
        if stored is None and before is None:
            return study
        if stored is None or (before is not None and stage.make is not ask_for_config):
            assert before is not None
            made = made_of(stage, before)
            if stored is not None:
                refuse_another(f"The stage {stage.name}", stored.decisive, made.decisive)
            stored = made
        study = with_models(study, number, stored)
    return study


def each_stage(study: Study, folder: Path, log: Callable[[str], None] = lambda text: None) -> Iterator[Study]:
    """Yield the study with all known stages, and again each time its training runs have ended, until all stages are
    known.

    ``log`` receives a sentence about the origin of each new stage.

    Raises:
      UserError: see ``known_stages``; or rows are still missing.
    """
    left = len(study.stages) + 1
    while True:
        before = study.unknown_stages
        study = known_stages(study, open_storage(folder))
        if len(study.unknown_stages) >= left:
            raise UserError(_missing(study, folder))
        for stage in study.stages:
            if stage.made_from and stage.name in before:
                log(origin(study, stage))
        yield study
        left = len(study.unknown_stages)
        if not left:
            return


def stage_result(study: Study, number: int, storage: DirFileSystem) -> StageResult | None:
    """Return a stage's result from its rows in a folder; None if rows are missing or its models are not known.

    Raises:
      UserError: a loss is not finite.
    """
    stage = study.stages[number]
    names = study.models_of(stage)
    if not names:
        return None
    statuses = {one.model: one for one in run_statuses(storage, [t for t in study.trainings() if t.name in names])}
    if any(one.state != "done" for one in statuses.values()):
        return None
    return result_of(stage, names, [row for name in names for row in statuses[name].rows])


def result_of(stage: Stage, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> StageResult:
    """Return a stage's result from run-table rows, which must include its models' rows.

    Raises:
      UserError: a loss is not finite.
    """
    own = [dict(row) for row in rows if row["model"] in names]
    lost = [row["model"] for row in own if row["loss"] is None or not math.isfinite(row["loss"])]
    diverged = list(dict.fromkeys(lost))
    if diverged:
        raise UserError(
            f"stages: {stage.name} has no winner, because {some(diverged)} diverged (the loss is not a number). In "
            "a new --out, lower its recipe.optimizer.learning_rate, or remove the model."
        )
    return StageResult(name=stage.name, rows=own, references=stage.references)


def results(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[StageResult]:
    """Return the results of all stages whose rows are in a run table."""
    there = {row["model"] for row in rows}
    known = [(stage, study.models_of(stage)) for stage in study.stages]
    return [result_of(stage, names, rows) for stage, names in known if names and set(names) <= there]


def write_stages(study: Study, folder: Path) -> None:
    """Write the models of each later stage to the folder.

    Raises:
      UserError: the folder holds other models for a stage.
    """
    storage = open_storage(folder)
    for number, stage in enumerate(study.stages):
        if not number or not stage.models:
            continue
        known = models_of(study, stage)
        stored = _stored(storage, stage)
        if stored is None:
            (folder / "stages").mkdir(exist_ok=True)
            write_json(folder / stage_file(stage.name), dump(known))
        else:
            refuse_another(f"The stage {stage.name} in {folder}", stored.decisive, known.decisive)


def models_of(study: Study, stage: Stage) -> StageModels:
    """Return the settings of a later stage from the study."""

    def own(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {name: settings[name] for name in stage.models if name in settings}

    return StageModels(
        models=own(study.models),
        recipes=own(study.recipes),
        seeds=own(study.seeds),
        notes=own(study.notes),
        references=stage.references,
        expected=stage.expected,
        made_from=stage.made_from,
    )


def _stored(storage: DirFileSystem, stage: Stage) -> StageModels | None:
    path = stage_file(stage.name)
    text = read_text(storage, path)
    return None if text is None else parse_json(text, StageModels, path, remedy=_REMEDY)


def made_of(stage: Stage, before: StageResult) -> StageModels:
    """Call a stage's function with the previous stage's result.

    Raises:
      UserError: the function fails, or returns no models or invalid settings.
    """
    winner = before.winner
    try:
        # The function gets a copy of the rows, so that it cannot change the result.
        returned = stage.make(dataclasses.replace(before, rows=[dict(row) for row in before.rows]))
    except UserError:
        raise
    # The function is user code and may even call ``sys.exit``.
    except (Exception, SystemExit) as error:
        raise UserError(
            f"The stage {stage.name} cannot be made from the rows of {before.name}, where {winner} won "
            f"({says('Python', error)}); fix the stage's function."
        ) from error
    made = build(StageModels, returned, f"stages.{stage.name}")
    if not made.models:
        raise UserError(f"stages: the function of {stage.name} returned no models; return at least one.")
    named = {"recipes": made.recipes, "seeds": made.seeds, "notes": made.notes, "references": made.references}
    for group, names in {**named, "expected": [made.expected] if made.expected else []}.items():
        for name in names:
            if name not in made.models:
                raise UserError(unknown(f"stages.{stage.name}.{group}: model {name!r}", name, list(made.models)))
    return dataclasses.replace(made, made_from=before.losses)


def with_models(study: Study, number: int, made: StageModels) -> Study:
    """Return the study with one more stage's models.

    Raises:
      UserError: a model has the same name as an earlier stage's model but other settings.
    """
    stage = study.stages[number]
    groups = ("models", "recipes", "seeds")
    for name in made.models:
        if name in study.models and any(
            dump(getattr(study, group).get(name)) != dump(getattr(made, group).get(name)) for group in groups
        ):
            raise UserError(
                f"stages: model {name} of {stage.name} has the same name as a model of an earlier stage but other "
                "settings; give it another name."
            )
    known = dataclasses.replace(
        stage,
        models=tuple(made.models),
        references=made.references,
        expected=made.expected,
        made_from=made.made_from,
    )
    # The first stage's models must be listed before more are added.
    first = dataclasses.replace(study.stages[0], models=study.models_of(study.stages[0]))
    stages = [first, *study.stages[1:number], known, *study.stages[number + 1 :]]
    together = {group: {**getattr(study, group), **getattr(made, group)} for group in (*groups, "notes")}
    return dataclasses.replace(study, stages=tuple(stages), **together)


def _missing(study: Study, folder: Path) -> str:
    number = next(number for number, stage in enumerate(study.stages) if stage.name in study.unknown_stages)
    names = study.models_of(study.stages[number - 1])
    trainings = [training for training in study.trainings() if training.name in names]
    left: list[RunStatus] = [one for one in run_statuses(open_storage(folder), trainings) if one.state != "done"]
    return (
        f"The stage {study.stages[number].name} is made from the rows of {study.stages[number - 1].name}, but the "
        f"rows of {some([one.model for one in left])} are missing. Train these models first; "
        f"{command('moejax', 'study', 'status', folder)} shows their states."
    )


def origin(study: Study, stage: Stage) -> str:
    """Return a sentence about the rows from which a later stage was made."""
    before = study.stages[study.stages.index(stage) - 1]
    rivals = {name: loss for name, loss in stage.made_from.items() if name not in before.references}
    winner = min(rivals, key=lambda name: rivals[name])
    models = counted(len(stage.models), "model")
    return f"stage {stage.name}: {models}, made from {before.name}, where {winner} won (loss {rivals[winner]:.4f})"


def later(study: Study) -> str:
    """Return a sentence about the stages that are not made yet; empty if all models are known."""
    names = list(study.unknown_stages)
    if not names:
        return ""
    order = [stage.name for stage in study.stages]
    before = order[order.index(names[0]) - 1]
    return (
        f"The stage{'s' * (len(names) > 1)} {listed(names)} {'have' if len(names) > 1 else 'has'} no models yet. "
        f"Each stage is made from the rows of the previous stage, {names[0]} from the rows of {before}."
    )
