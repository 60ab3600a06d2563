"""``moejax study``: a family of models from its config to a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moejax.cli.commands.exportable import check_exportable
from moejax.cli.commands.study_estimate import print_estimate
from moejax.cli.commands.study_status import gather, print_status
from moejax.cli.config_file import load
from moejax.cli.progress import progress_display
from moejax.config import unknown
from moejax.errors import UserError
from moejax.json_text import json_text
from moejax.report import render
from moejax.report.conclusions import brief
from moejax.report.findings import read
from moejax.report.report import as_data, write_report
from moejax.study.run import conclude, read_study, train_study
from moejax.study.study import Study

ACTIONS = ("status", "gather")


def run(arguments: argparse.Namespace) -> int:
    """Train, conclude, report, and print the answer."""
    if arguments.action:
        return _of_a_folder(arguments)
    study, folder = _study(arguments)
    check_exportable(arguments.exportable, study.models)
    if arguments.dry_run:
        print_estimate(study, arguments.chip, arguments.mfu, arguments.price, as_json=arguments.json)
        return 0
    study.check()
    study.check_data()

    runs = sum(len(training.recipe.budgets_tokens) for training in study.trainings())
    for warning in study.warnings():
        _say(f"moejax: {warning}")
    _say(f"1/3  training {len(study.models)} models, {runs} runs, into {folder}")
    with progress_display() as update:
        train_study(
            study,
            folder,
            workers=arguments.workers,
            vmap=arguments.vmap,
            update=update,
            log=_goes_on,
        )
    _say("2/3  fitting laws, resampling, checking the optimum")
    with progress_display() as update:
        concluded = conclude(folder, update)
    _say("3/3  writing the report")
    report = write_report(concluded)
    if arguments.json:
        print(json_text(as_data(concluded)))
    else:
        render.show(brief(read(concluded)))
        print(f"report: {report.resolve()}")
    failed = [check for check in concluded.sanity_checks if not check.holds]
    for check in failed:
        _say(f"moejax: the sweep is not to be trusted. It should show that {check.fact}; found: {check.found}.")
    return 1 if failed else 0


def _of_a_folder(arguments: argparse.Namespace) -> int:
    name, *folders = arguments.action
    if name not in ACTIONS:
        raise UserError(unknown(f"moejax study {name}: action {name!r}", name, ACTIONS))
    if len(folders) != 1:
        raise UserError(f"moejax study {name} takes one folder; give moejax study {name} DIR.")
    if name == "status":
        print_status(folders[0], arguments.price, as_json=arguments.json)
    else:
        gather(folders[0], arguments.out)
    return 0


def _study(arguments: argparse.Namespace):
    if arguments.config:
        study = load(Study, arguments.config, arguments.overrides)
        return study, Path(arguments.out or f"runs/{study.name}")
    if not (arguments.resume and arguments.out):
        raise UserError("No study was named; give --config=FILE.py, or --resume --out=DIR to go on with one.")
    return read_study(Path(arguments.out)), Path(arguments.out)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _goes_on(text: str) -> None:
    _say(f"moejax: {text}")
