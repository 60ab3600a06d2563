"""Define the options of ``moejax next``."""

from __future__ import annotations

import argparse
from pathlib import Path

from moejax.cli.number import count, number, share
from moejax.cli.out_folder import local
from moejax.cli.parsers.fit_options import add_formula_arguments, add_objective_arguments, add_search_arguments
from moejax.cli.parsers.options import add_architecture_arguments, add_sequence_length
from moejax.cli.parsers.run_table_options import RUNS_HELP, add_table_arguments
from moejax.cli.process import compile_quickly
from moejax.errors import UserError
from moejax.run_sources.source import source

OUTPUTS = ("next.json", "study.py")
HELP = "Propose the runs to train next: those that make an answer of a fitted law, or the choice of law, most certain."
EXAMPLE = """\
moejax next runs.parquet --law effective_params --target 'N_act*:flops=1e24,expansion=16' --flops 1e21 --k 8
moejax next runs.csv --law five_factor --target deepseek-v3.1:tokens=14.8T --flops 3e21 --config tiny.py --out next
moejax next runs.csv --form 'loss = E + A/params_active^a + B/tokens^b' --target a --flops 1e20
moejax next runs.csv --law chinchilla,zhao --target deepseek-v3.1:tokens=14.8T --flops 1e21 --candidates mine.csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("runs", type=source, metavar="RUNS", help=RUNS_HELP)
    parser.add_argument(
        "--law",
        metavar="NAME[,NAME…]",
        help="laws to fit; with several, runs that tell which is right are worth more",
    )
    add_formula_arguments(parser)
    parser.add_argument(
        "--target",
        action="append",
        required=True,
        metavar="WHAT:NAME=VALUE,…",
        help="what is to become certain: loss:params_active=7B,tokens=2T; a published model's, deepseek-v3.1:tokens="
        "14.8T; a decision, 'N*:flops=1e25'; a coefficient. May be repeated",
    )
    parser.add_argument("--flops", type=number, required=True, metavar="NUMBER", help="FLOPs of all new runs together")
    parser.add_argument("--k", type=count(0, 1_000), default=10, metavar="COUNT", help="new runs at most (%(default)s)")
    what = parser.add_argument_group("what could be trained", "by default shapes like those in the table")
    add_architecture_arguments(parser, required=False)
    what.add_argument("--candidates", type=Path, metavar="TABLE", help="runs to choose from, with what the laws read")
    what.add_argument(
        "--reach",
        type=number,
        default=4.0,
        metavar="FACTOR",
        help="no run has more than FACTOR times the total or active parameters or tokens of the table's largest "
        "(%(default)g)",
    )
    what.add_argument("--largest", type=number, metavar="FLOPS", help="most FLOPs of one run")
    what.add_argument(
        "--repeats",
        type=count(0, 1_000),
        default=1,
        metavar="COUNT",
        help="how often one run may be proposed (%(default)s)",
    )
    add_sequence_length(what, "sequence length of the shapes (the table's, or 4096)", default=None)
    add_table_arguments(parser)
    fitting = parser.add_argument_group("fitting")
    add_objective_arguments(fitting)
    add_search_arguments(fitting)
    fitting.add_argument("--noise", type=share, metavar="SHARE", help="scatter of the loss (what the fit leaves)")
    fitting.add_argument(
        "--around", metavar="SET", help="plan around published constants instead of a fit, as for a table of few runs"
    )
    fitting.add_argument(
        "--modes",
        action="store_true",
        help="plan for every mode of the law's posterior, not around its best fit alone; as it is where a table has "
        "fewer runs than coefficients",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--out", type=local, metavar="DIR", help="write next.json, and study.py that trains the runs")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for numbers out of range, a missing law, or options that exclude each other."""
    if arguments.law is None and arguments.form is None:
        raise UserError("There is no law to plan for; give --law NAME (`moejax laws` lists them), or --form FORMULA.")
    if arguments.form is not None and arguments.around is not None:
        raise UserError("--around is a published set of constants, and a formula has none; leave it out.")
    for name, least in (("flops", 0.0), ("k", 0.0), ("repeats", 0.0), ("reach", 1.0), ("largest", 0.0)):
        value = getattr(arguments, name)
        if value is not None and not value > least:
            raise UserError(f"--{name} is {value:g}; give a number above {least:g}.")
    if arguments.candidates and (arguments.arch or arguments.config):
        raise UserError("--candidates names every run that there is to choose from; leave out --arch and --config.")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the few programs of a fit or a design."""
    compile_quickly()
