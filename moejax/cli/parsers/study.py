"""Define the options of ``moejax study``."""

from __future__ import annotations

import argparse

from moejax.cli.number import WORKERS, count, number
from moejax.cli.out_folder import local
from moejax.cli.parsers.options import add_config_argument, add_exportable_argument, check_config_or_resume
from moejax.cli.settings import STUDY, TRAINING
from moejax.config import unknown
from moejax.errors import UserError
from moejax.study.storage import identity

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
    """Add this command's arguments."""
    parser.add_argument(
        "action",
        nargs="*",
        metavar="status DIR | gather DIR",
        help="show how far the study in DIR is, or write its run table",
    )
    add_config_argument(parser, STUDY, TRAINING, required=False)
    parser.add_argument("--out", type=local, metavar="DIR", help="output folder (default: runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on with the study in --out; needs no --config")
    parser.add_argument(
        "--workers", type=WORKERS, metavar="N", help="trainings that run at the same time (default: one per core)"
    )
    parser.add_argument(
        "--vmap",
        type=count(1, 4_096),
        default=1,
        metavar="N",
        help="train up to N models in one process that differ in seed, learning rate and weight decay alone (1)",
    )
    parser.add_argument("--json", action="store_true", help="print the conclusions on stdout as JSON")
    add_exportable_argument(parser)
    before = parser.add_argument_group("before anything is spent")
    before.add_argument(
        "--dry-run", action="store_true", help="print runs, FLOPs, memory, time and cost; train nothing"
    )
    before.add_argument(
        "--chip", default="h100", metavar="NAME", help="chip to estimate for: h800, v5p, … (%(default)s)"
    )
    before.add_argument(
        "--mfu",
        type=number,
        default=0.4,
        metavar="SHARE",
        help="share of the chip's peak FLOP/s that is assumed (%(default)s)",
    )
    before.add_argument("--price", type=number, metavar="COST", help="price of one chip for an hour, in any currency")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if no study is named, or an action's folder holds none."""
    if not arguments.action:
        check_config_or_resume(arguments, "No study")
        return
    name, *folders = arguments.action
    if name not in ACTIONS:
        raise UserError(unknown(f"moejax study {name}: action {name!r}", name, ACTIONS))
    if len(folders) != 1:
        raise UserError(f"moejax study {name} takes one folder; give moejax study {name} DIR.")
    identity(folders[0])


def command(arguments: argparse.Namespace) -> str:
    """Return the name of the implementing module in ``moejax.cli.commands``."""
    if arguments.action:
        return "study_status"
    return "study_estimate" if arguments.dry_run else "study"
