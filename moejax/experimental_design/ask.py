"""Turn questions about a law, and a table of runs, into the inputs of ``propose``: targets and candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moejax.architecture import Architecture
from moejax.config import dump
from moejax.design.decide import customary_model
from moejax.errors import UserError
from moejax.experimental_design.candidates import Candidates, of_table
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.fit.uncertainty.estimands import (
    Estimand,
    above_0,
    coefficient_estimands,
    decision_estimands,
    find,
    prediction_estimand,
)
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.design import Design, design_from, known
from moejax.laws.law import without_effect
from moejax.run_table import read_as_it_is
from moejax.say import say
from moejax.stored import foreign_json


def target(what: str, given: Mapping[str, float], law: type, fixed: Sequence[str]) -> Estimand:
    """Return the estimand of ``WHAT:NAME=VALUE,…`` for a law."""
    if (model := CATALOGUE.get(what.lower())) is not None:
        if set(given) != {"tokens"}:
            raise UserError(f"--target {what}: give its training tokens and nothing else: {what}:tokens=14.8T.")
        design = known(design_of(model.architecture, given["tokens"], 4096))
        return prediction_estimand(law, {name: float(value) for name, value in design.items()})
    if what in ("loss", *law.outputs):
        return prediction_estimand(law, dict(given), what if what in law.outputs else None)
    alone = coefficient_estimands(law, tuple(fixed)) if not given else []
    (estimand, *_) = find(what, [*alone, *decision_estimands(law, dict(given))], law)
    return above_0(law, [estimand])[0]


def check_output(asked: Mapping[str, Sequence[Estimand]], laws: Mapping[str, type], output: str) -> None:
    """Raise ``UserError`` for targets that depend on another output of a law than the fitted one."""
    for name, law in laws.items():
        if not (without := without_effect(law, output)):
            continue
        if wrong := [one.name for one in asked[name] if one.name in {*law.outputs, *without} - {output}]:
            raise UserError(
                f"--target {wrong[0]} does not depend on the {output}, which is fitted; name the column of what it "
                f"rests on by --loss."
            )


def designs_of(answers: Sequence[Estimand]) -> Design | None:
    """Return the designs of the requested losses, by their common names; None if other answers are requested."""
    if any(one.rule is not None or not one.given for one in answers):
        return None
    names = [name for name in answers[0].given if all(name in one.given for one in answers)]
    return design_from({name: np.array([float(one.given[name]) for one in answers]) for name in names})


def recipe_of(read: ReadRuns, default: Any, sequence_length: int | None) -> dict[str, Any]:
    """Return the recipe of the table's last run if the table has its config, else one with automatic settings.

    Args:
      default: a recipe with default settings, which are left out.
    """
    if "config" not in read.frame.columns:
        length = sequence_length or 4096
        return {"batch_tokens": "auto", "data": {"sequence_length": length}, "optimizer": {"learning_rate": "auto"}}
    where, remedy = "The column config of the table's last run", "leave the column out"
    config = foreign_json(str(read.frame["config"].iloc[-1]), where, shape={"recipe": dict}, remedy=remedy)
    return _changed(config["recipe"], dump(default))


def _changed(settings: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the default."""
    changed = {}
    for name, value in settings.items():
        if name == "budgets_tokens" or value == default.get(name):
            continue
        inner = isinstance(value, dict) and isinstance(default.get(name), dict)
        changed[name] = _changed(value, default[name]) if inner else value
    return changed


def candidates_of(table: Path, inputs: Sequence[str], mapping: Mapping[str, str], most_flops: float) -> Candidates:
    """Return the rows of a table as candidates, without those above ``most_flops`` if any remain."""
    frame = read_as_it_is(table).assign(loss=1.0)
    read = read_runs(frame, inputs, mapping={n: v for n, v in mapping.items() if n in inputs or n == "flops"})
    every = of_table(read.runs, [f"row {row}" for row in read.rows])
    return every.only([i for i in range(len(every)) if every.flops[i] <= most_flops] or range(len(every)))


def architectures_like(read: ReadRuns, inputs: Sequence[str]) -> list[Architecture]:
    """Return architectures with the proportions to keep: those of the table, or a published model's."""
    if "architecture" in read.frame.columns:
        texts = dict.fromkeys(read.frame["architecture"])
        where, remedy = "The column architecture of the table", "leave the column out"
        every = [foreign_json(str(text), where, shape=Architecture, remedy=remedy) for text in texts]
        # One dense model and one of every kind of mixture suffice, since sizes are varied.
        return list({(a.is_moe, a.num_shared_experts > 0, a.router): a for a in every}.values())
    name = customary_model(inputs)
    say(f"Shapes have the proportions and the vocabulary of {name}; give your own with --arch or --config.")
    return [CATALOGUE[name].architecture]


def whole(value: Any) -> int:
    """Return a whole number, or 0 for a setting that is chosen later."""
    return value if isinstance(value, int) else 0
