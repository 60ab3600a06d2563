"""Implement ``moejax next``: choose the runs that reduce the uncertainty of an answer most for the FLOPs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from moejax.architecture import Architecture
from moejax.cli.commands.architecture import load_architecture
from moejax.cli.commands.fit_options import check_formula_options, fixed_of, law_of, penalty_of, search_of, starts_of
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.number import pairs
from moejax.cli.out_folder import out_set
from moejax.cli.progress import progress
from moejax.config import dump
from moejax.design.decide import customary_model
from moejax.errors import UserError
from moejax.experimental_design.candidates import like, of_table
from moejax.experimental_design.experiment_plan import RunBudget
from moejax.experimental_design.propose import propose
from moejax.experimental_design.summary import study_text, summary
from moejax.fit.tables.read_runs import read_runs
from moejax.fit.uncertainty.estimands import (
    above_0,
    coefficient_estimands,
    decision_estimands,
    find,
    prediction_estimand,
)
from moejax.folder import write_text
from moejax.laws import LAWS
from moejax.laws.accounting import design_of
from moejax.laws.catalogue import CATALOGUE
from moejax.laws.design import Design, design_from, known
from moejax.laws.law import without_effect
from moejax.laws.predict import law_name, published
from moejax.quantities import parse
from moejax.report import render
from moejax.run_table import read_as_it_is
from moejax.say import say
from moejax.stored import foreign_json, write_json
from moejax.train.training import Recipe
from moejax.wording import listed


def run(arguments: argparse.Namespace) -> int:
    """Read runs, fit, plan, and print."""
    laws = _laws(arguments)

    fixed = fixed_of(arguments)
    asked = {name: [_target(text, law, tuple(fixed)) for text in arguments.target] for name, law in laws.items()}
    inputs = tuple(dict.fromkeys(name for law in laws.values() for name in law.inputs))
    # A formula names the fitted column itself.
    read = read_table(arguments, inputs if arguments.form is None else laws[arguments.form])
    _check_output(asked, laws, read.runs.output)
    recipe = _recipe(arguments, read)
    found = _candidates(arguments, inputs, read, recipe)
    with progress() as show:
        proposal = propose(
            laws,
            read.runs,
            found,
            {name: [estimand.functional for estimand in answers] for name, answers in asked.items()},
            RunBudget(flops=arguments.flops, runs=arguments.k, repeats=arguments.repeats),
            around=_around(arguments, laws),
            noise=arguments.noise,
            fixed=fixed,
            modes=arguments.modes,
            asked=_designs(next(iter(asked.values()))),
            penalty=penalty_of(arguments),
            starts=starts_of(arguments),
            search=search_of(arguments),
            seed=arguments.seed,
            progress=show,
        )
    titles = list(proposal.instead) or [answer.title for answer in next(iter(asked.values()))]
    if proposal.instead:
        what = ", ".join(arguments.target)
        say(f"! The fitted law has no answer to {what} yet: planned for its coefficients.")
    result = summary(proposal, titles, inputs)
    if arguments.best_by:
        result = replace(result, warnings=[_swept(arguments.best_by, laws), *result.warnings])
    if arguments.out:
        _write(arguments, proposal, result.data, recipe)
    render.show(result, as_json=arguments.json)
    return 0


def _swept(settings: str, laws: Mapping[str, type]) -> str:
    """Return a warning that each row of the table is the best run of a sweep, while FLOPs are those of one run."""
    names = listed([name.strip() for name in settings.split(",")])
    own = [name for law in laws.values() for name in law.outputs if name != "loss"]
    what = f"and one run alone has no best {own[0]}" if own else "and at another setting a run lies above the law"
    return (
        f"Every run of the table is the best of a sweep over {names}; FLOPs here are those of one run. Sweep {names} "
        f"of those to train too, or set it by its law: a sweep of five costs five times these FLOPs, {what}."
    )


def _laws(arguments: argparse.Namespace) -> dict[str, type]:
    """Return the laws to plan for, by name: those named from the catalogue, or the formula."""
    if arguments.form is not None or "," not in arguments.law:
        law = law_of(arguments)
        return {arguments.form or law_name(arguments.law): law}
    check_formula_options(arguments)
    return {name: LAWS[name] for name in dict.fromkeys(law_name(word) for word in arguments.law.split(","))}


def _target(text: str, law: type, fixed: tuple[str, ...]) -> Any:
    """Return the estimand of ``WHAT:NAME=VALUE,…`` for a law."""
    what, _, rest = text.partition(":")
    given = {name: parse(value) for name, value in pairs(rest.split(","), "--target")} if rest else {}
    model = CATALOGUE.get(what.lower())
    if model is not None:
        if set(given) != {"tokens"}:
            raise UserError(f"--target {text!r}: say how long it is trained and nothing else: {what}:tokens=14.8T.")
        design = known(design_of(model.architecture, given["tokens"], 4096))
        return prediction_estimand(law, {name: float(value) for name, value in design.items()})
    if what in ("loss", *law.outputs):
        return prediction_estimand(law, given, what if what in law.outputs else None)
    alone = coefficient_estimands(law, fixed) if not given else []
    (found, *_) = find(what, [*alone, *decision_estimands(law, given)], law)
    return above_0(law, [found])[0]


def _check_output(asked: Mapping[str, Sequence[Any]], laws: Mapping[str, type], output: str) -> None:
    """Raise ``UserError`` for targets that depend on another output of a law than the fitted one."""
    for name, law in laws.items():
        if not (without := without_effect(law, output)):
            continue
        if wrong := [one.name for one in asked[name] if one.name in {*law.outputs, *without} - {output}]:
            raise UserError(
                f"--target {wrong[0]} does not depend on the {output}, which is fitted; name the column of what it "
                f"rests on by --loss."
            )


def _designs(answers: Sequence[Any]) -> Design | None:
    """Return the designs of the requested losses, by their common names; None if other answers are requested."""
    if any(one.rule is not None or not one.given for one in answers):
        return None
    names = [name for name in answers[0].given if all(name in one.given for one in answers)]
    return design_from({name: np.array([float(one.given[name]) for one in answers]) for name in names})


def _around(arguments: argparse.Namespace, laws: Any) -> dict[str, Any]:
    if arguments.around is None:
        return {}
    if len(laws) > 1:
        raise UserError("--around is a set of constants of one law; name one with --law.")
    (name,) = laws
    return {name: published(name, arguments.around).law}


def _recipe(arguments: argparse.Namespace, read: Any) -> dict[str, Any]:
    """Return the recipe of the table's last run if the table has its config, else one with automatic settings."""
    if "config" not in read.frame.columns:
        length = arguments.sequence_length or 4096
        return {"batch_tokens": "auto", "data": {"sequence_length": length}, "optimizer": {"learning_rate": "auto"}}
    where, remedy = "The column config of the table's last run", "leave the column out"
    config = foreign_json(str(read.frame["config"].iloc[-1]), where, shape={"recipe": dict}, remedy=remedy)
    return _changed(config["recipe"], dump(Recipe(budgets_tokens=())))


def _changed(settings: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the default."""
    found = {}
    for name, value in settings.items():
        if name == "budgets_tokens" or value == default.get(name):
            continue
        inner = isinstance(value, dict) and isinstance(default.get(name), dict)
        found[name] = _changed(value, default[name]) if inner else value
    return found


def _candidates(arguments: argparse.Namespace, inputs: tuple[str, ...], read: Any, recipe: dict[str, Any]) -> Any:
    most = min(arguments.flops, arguments.largest or arguments.flops)
    if arguments.candidates:
        frame = read_as_it_is(arguments.candidates).assign(loss=1.0)
        mapping = dict(pairs(arguments.map, "--map"))
        table = read_runs(frame, inputs, mapping={n: v for n, v in mapping.items() if n in inputs or n == "flops"})
        found = of_table(table.runs, [f"row {row}" for row in table.rows])
        return found.only([i for i in range(len(found)) if found.flops[i] <= most] or range(len(found)))
    optimizer = recipe.get("optimizer", {})
    return like(
        _likenesses(arguments, inputs, read),
        inputs,
        read.runs,
        most_flops=most,
        sequence_length=arguments.sequence_length or recipe.get("data", {}).get("sequence_length", 4096),
        reach=arguments.reach,
        # A budget has at least two steps, and its warm-up ends before its decay starts.
        least_tokens=max(_whole(recipe.get("batch_tokens")) * 2.0, _whole(optimizer.get("warmup_tokens")) * 2.0),
        seed=arguments.seed,
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _likenesses(arguments: argparse.Namespace, inputs: tuple[str, ...], read: Any) -> list[Any]:
    """Return architectures with the proportions to keep: the given one, those of the table, or a published model's."""
    if (given := load_architecture(arguments)) is not None:
        return [given[1]]
    if "architecture" in read.frame.columns:
        texts = dict.fromkeys(read.frame["architecture"])
        where, remedy = "The column architecture of the table", "leave the column out"
        found = [foreign_json(str(text), where, shape=Architecture, remedy=remedy) for text in texts]
        # One dense model and one of every kind of mixture suffice, since sizes are varied.
        kinds = {(a.is_moe, a.num_shared_experts > 0, a.router): a for a in found}
        return list(kinds.values())
    name = customary_model(SimpleNamespace(inputs=inputs))
    say(f"Shapes have the proportions and the vocabulary of {name}; give your own with --arch or --config.")
    return [CATALOGUE[name].architecture]


def _write(arguments: argparse.Namespace, proposal: Any, data: dict[str, Any], recipe: dict[str, Any]) -> None:
    chosen = proposal.candidates.only(proposal.plan.order)
    written = ["next.json"]
    with out_set(arguments.out):
        if chosen.architectures:
            if "warmup_tokens" not in recipe.get("optimizer", {}):
                warmup = int(min(chosen.design.tokens) // 100)
                recipe = {**recipe, "optimizer": {**recipe.get("optimizer", {}), "warmup_tokens": warmup}}
            law, what = arguments.form or arguments.law, ", ".join(arguments.target)
            says = f"{len(chosen)} runs that make {what} more certain under {law}."
            text = study_text("next", chosen.architectures, chosen.design.tokens.tolist(), recipe, says)
            write_text(arguments.out / "study.py", text)
            written.append("study.py")
        write_json(arguments.out / "next.json", data)
    say(f"Wrote {' and '.join(written)} to {arguments.out}.")
    if not chosen.architectures:
        say("No study.py: rows of --candidates are no architectures; train them as you know them.")
