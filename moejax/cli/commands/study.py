"""Implement ``moejax study``: run a study from its config to a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moejax.cli.commands.exportable import check_exportable
from moejax.cli.commands.fit_recipes import write_tian
from moejax.cli.commands.load_study import load_study
from moejax.cli.progress import progress_display
from moejax.json_text import json_text
from moejax.papers.recipes import STUDY_RECIPES
from moejax.papers.tian.recipe import Followed
from moejax.report import render
from moejax.report.conclusions import brief
from moejax.report.findings import read
from moejax.report.report import as_data, write_report
from moejax.say import say
from moejax.storage import open_storage
from moejax.study import analysis
from moejax.study.downstream import ask_checkpoints, asked_tasks, check_tasks
from moejax.study.outcomes import try_outcomes
from moejax.study.run import check_owner, conclude, read_study, train_study
from moejax.study.stages import known_stages, later
from moejax.wording import counted


def run(arguments: argparse.Namespace) -> int:
    """Train, conclude, report, and print the answer."""
    study, out = load_study(arguments)
    folder = Path(out)
    study.check()
    study.check_data()
    check_owner(study, folder)
    known = known_stages(study, open_storage(folder))
    outcomes = try_outcomes(known, lambda one: check_exportable(arguments.exportable, one.models))
    check_exportable(arguments.exportable, known.models)
    asked = asked_tasks(study)
    if asked:
        check_tasks(known, folder)
    parts = 4 if asked else 3

    runs = sum(len(training.recipe.budgets_tokens) for training in known.trainings())
    for warning in (*analysis.warnings(outcomes.expected), *([outcomes.said] if outcomes.tried else [])):
        say(f"moejax: {warning}")
    what = f"{counted(len(known.models), 'model')}, {counted(runs, 'run')}"
    say(f"1/{parts}  training {what}, into {folder}. {later(known)}".rstrip(". "))
    with progress_display() as update:
        train_study(
            study,
            folder,
            workers=arguments.workers,
            vmap=arguments.vmap,
            update=update,
            log=_goes_on,
        )
    if asked:
        say(f"2/{parts}  asking {counted(len(asked), 'task')} of every checkpoint")
        with progress_display() as update:
            new = ask_checkpoints(read_study(folder), folder, update)
        say(f"{counted(new, 'score')} more")
    say(f"{parts - 1}/{parts}  fitting laws, resampling, checking the optimum")
    with progress_display() as update:
        concluded = conclude(folder, update, STUDY_RECIPES)
    say(f"{parts}/{parts}  writing the report")
    report = write_report(concluded)
    if isinstance(followed := concluded.analysed.recipe, Followed):
        write_tian(folder / study.analysis.recipe, followed.found, followed.read, followed.runs)
    if arguments.json:
        print(json_text(as_data(concluded)))
    else:
        render.show(brief(read(concluded)))
        say(f"report: {report.resolve()}", file=sys.stdout)
    failed = [check for check in concluded.sanity_checks if check.holds is False]
    for check in failed:
        say(f"moejax: the sweep is not to be trusted. It should show that {check.fact}; found: {check.found}.")
    return 1 if failed else 0


def _goes_on(text: str) -> None:
    say(f"moejax: {text}")
