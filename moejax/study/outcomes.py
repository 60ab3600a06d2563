"""Try the possible outcomes of a study's stages before training: each model that may win a stage is treated as the
winner.

A stage's function reads rows that do not exist yet. It receives rows with artificial losses, so that each model wins in
turn, and the resulting stage is checked like a study.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError
from moejax.study.stages import ask_for_config, made_of, result_of, with_models
from moejax.study.study import Stage, Study
from moejax.train.directory.row import MEASURED, known_columns
from moejax.wording import counted, told

MOST_MODELS = 500
"""Maximum number of models that are made and checked; this takes some seconds."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The outcomes that were tried."""

    expected: Study
    """The study if each stage's expected model wins, up to the first stage without an expected model. Notes on the
    later stages' models state this assumption.
    """
    tried: int
    """Number of stages that were made from a possible winner of the previous stage."""
    left: int
    """Number of possible winners that were not tried. Each may lead to further possible winners in later stages."""

    @property
    def said(self) -> str:
        """A sentence about the tried outcomes; empty if there are no outcomes to try."""
        if not self.tried:
            return ""
        made = "Stages were made and checked for"
        if not self.left:
            return f"{made} every possible winner, {self.tried:,} in all."
        return (
            f"{made} {counted(self.tried, 'possible winner')}, expected winners first. Stages made from "
            f"{self.left:,} or more other possible winners are checked when they win."
        )


def try_outcomes(
    study: Study, check: Callable[[Study], None] = lambda study: None, *, most_models: int = MOST_MODELS
) -> Outcomes:
    """Make the unknown stages from every possible winner of the previous stage, and check the results.

    The first outcome is that the expected model, or else the first model, wins every stage. Outcomes with one
    unexpected winner follow, then outcomes with two, and so on.

    Args:
      check: a further check of the study with one more stage.
      most_models: number of models after which no more outcomes are tried.

    Raises:
      UserError: a stage cannot be made from a winner, or has models that cannot be trained.
    """
    waiting: list[tuple[int, int, Trial, str]] = []
    order, expected, tried, models = itertools.count(), study, 0, 0

    def expect(known: Study, surprises: int) -> None:
        if (trial := _trial(known)) is not None:
            for place, winner in enumerate(trial.winners):
                heapq.heappush(waiting, (surprises + (place > 0), next(order), trial, winner))

    expect(study, 0)
    while waiting and models < most_models:
        surprises, _, trial, winner = heapq.heappop(waiting)
        made = trial.made(winner, check)
        tried, models = tried + 1, models + len(made.stages[trial.number].models)
        if trial.study is expected and winner == trial.before.expected:
            expected = made
        expect(made, surprises)
    return Outcomes(expected=expected, tried=tried, left=len(waiting))


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """A study up to a stage without rows, for trying how the next stage is made."""

    study: Study
    number: int
    """Index of the stage to be made."""
    winners: list[str]
    """Models that may win the previous stage, the expected one first."""
    rows: list[dict[str, Any]]
    """Rows of the previous stage's runs, with the columns that are known before training."""
    measured: tuple[str, ...]
    """Numeric columns whose values only training provides."""

    @property
    def before(self) -> Stage:
        """The stage without rows."""
        return self.study.stages[self.number - 1]

    def made(self, winner: str, check: Callable[[Study], None]) -> Study:
        """Return the study with one more stage, made as if ``winner`` won, and checked."""
        study, before, stage = self.study, self.before, self.study.stages[self.number]
        names = study.models_of(before)
        order = [winner, *(name for name in names if name != winner)]
        try:
            rows = [self._with_losses(row, order.index(row["model"])) for row in self.rows]
            made = made_of(stage, result_of(before, names, rows))
            new = [name for name in made.models if name not in study.models]
            study = with_models(study, self.number, made)
            study.check(new)
            check(study)
        except UserError as error:
            raise UserError(
                f"The stage {stage.name} fails if {winner} wins {before.name}: {told(error)} (List models that must "
                "not win as references of their stage.)"
            ) from error
        note = f"stage {stage.name}, made as if {winner} won {before.name}"
        notes = {name: "; ".join(filter(None, (study.notes.get(name), note))) for name in new}
        return dataclasses.replace(study, notes={**study.notes, **notes})

    def _with_losses(self, row: dict[str, Any], place: int) -> dict[str, Any]:
        """Return a row, keyed by column, with an artificial loss in every column that needs training. The loss
        increases with ``place``.
        """
        return {**dict.fromkeys(self.measured, 2.0 + 0.01 * place + 1.0 / row["tokens"]), **row}


def _trial(study: Study) -> Trial | None:
    """Return the trial of the next stage; None if all stages are known, or the next stage's function is not
    available.
    """
    number = next((number for number, stage in enumerate(study.stages) if not study.models_of(stage)), 0)
    if not number or study.stages[number].make is ask_for_config:
        return None
    before = study.stages[number - 1]
    own = {name: study.models[name] for name in study.models_of(before)}
    rows = [
        known_columns(training, budget)
        for training in dataclasses.replace(study, models=own).trainings()
        for budget in training.recipe.budgets_tokens
    ]
    # If all models are references, the error of the first one states that none can win.
    winners = [name for name in own if name not in before.references] or list(own)[:1]
    winners.sort(key=lambda name: name != before.expected)
    parts = [part.name for part in study.recipe.data.parts]
    kinds = ("loss", "bits_per_byte", "share", "epochs")
    measured = (*MEASURED, *(f"{kind}_{part}" for kind in kinds for part in parts))
    return Trial(study=study, number=number, winners=winners, rows=rows, measured=measured)
