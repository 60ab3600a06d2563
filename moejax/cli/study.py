"""``moejax study``: a family of models from its config to a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from moejax.cli.config_file import add_config_argument
from moejax.cli.exportable import add_exportable_argument, check_exportable
from moejax.cli.given_settings import STUDY
from moejax.cli.number import WORKERS, count, number
from moejax.errors import UserError
from moejax.json_text import json_text

NAME = "study"
ACTIONS = ("status", "gather")
HELP = "Train a family of models, fit laws to its runs, decide, report. Run again, it goes on where it was stopped."
EXAMPLE = """\
  moejax study --config=configs/studies/quickstart.py --out runs/quickstart
  moejax study --config=configs/studies/quickstart.py --config.analysis.decision_flops=1e15 --out runs/quickstart
  moejax study --resume --out runs/quickstart        # goes on with what the folder holds
  moejax study --config=configs/studies/zhao.py:G --dry-run --chip h800 --mfu 0.4 --price 2
  moejax study status runs/quickstart                # done, running, failed and why, time left, device-hours
  moejax study gather gs://bucket/zhao --out runs/zhao   # the run table of what engines have done"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("action", nargs="*", metavar="status DIR | gather DIR", help="of a study that was started")
    add_config_argument(parser, STUDY, required=False)
    parser.add_argument("--out", metavar="DIR", help="output folder (default: runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on with the study in --out; needs no --config")
    parser.add_argument("--workers", type=WORKERS, metavar="N", help="trainings at a time (default: one per core)")
    parser.add_argument(
        "--vmap",
        type=count(1, 4_096),
        default=1,
        metavar="N",
        help="train up to N models at once that differ in seed, learning rate and weight decay alone (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the conclusions on stdout as JSON")
    add_exportable_argument(parser)
    before = parser.add_argument_group("before anything is spent")
    before.add_argument(
        "--dry-run", action="store_true", help="print runs, FLOPs, memory, time and cost; train nothing"
    )
    before.add_argument("--chip", default="h100", metavar="NAME", help="to estimate on: h800, v5p, … (%(default)s)")
    before.add_argument("--mfu", type=number, default=0.4, metavar="SHARE", help="of its peak, reached (%(default)s)")
    before.add_argument("--price", type=number, metavar="COST", help="of one chip for an hour, in any currency")


def run(arguments: argparse.Namespace) -> int:
    """Train, conclude, report, and print the answer."""
    if arguments.action:
        return _of_a_folder(arguments)
    study, folder = _study(arguments)
    check_exportable(arguments.exportable, study.models)
    if arguments.dry_run:
        from moejax.cli.study_estimate import print_estimate

        print_estimate(study, arguments.chip, arguments.mfu, arguments.price, as_json=arguments.json)
        return 0
    study.check()
    study.check_data()
    from moejax.cli.progress import progress_display
    from moejax.report import render
    from moejax.report.conclusions import brief
    from moejax.report.findings import read
    from moejax.report.report import as_data, write_report
    from moejax.study.run import conclude, train_study

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
    from moejax.cli.study_status import gather, print_status
    from moejax.config import unknown

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
    from moejax.cli.config_file import load
    from moejax.study.run import read_study
    from moejax.study.study import Study

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
