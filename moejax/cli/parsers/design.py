"""Define the options of ``moejax design``."""

from __future__ import annotations

import argparse

from moejax.cli.number import number, resamples
from moejax.cli.out_folder import local
from moejax.cli.parsers.design_constraints import add_constraint_arguments
from moejax.cli.parsers.options import add_architecture_arguments, add_level
from moejax.cli.parsers.run_table_options import add_table_arguments
from moejax.cli.process import compile_quickly
from moejax.cli.validation import law_or_fit
from moejax.errors import UserError
from moejax.run_sources.source import source

OUTPUTS = ("design.json", "config.py", "frontier.png", "landscape.png")
HELP = (
    "Choose what to train for a budget: sizes, shape, tokens; with the price of every constraint and the flat region "
    "around the optimum."
)
EXAMPLE = """\
moejax design --law zhao --flops 1e24 --chips 512 --memory 80G
moejax design --law all --flops 1e24 --params-total 1T
moejax design --law effective_params --flops 1e22 --hold expansion=16 --arch qwen3-30b-a3b --out designed
moejax design --law zhao --target-loss 2.0 --minimise lifetime_flops --served-tokens 10T --params-total 1T
moejax design --law runs/fit/fit.json --runs runs.csv --bootstrap 200 --flops 1e21 --params-total 30B
moejax design --law chinchilla --sweep flops=1e20:1e26 --out frontier
moejax design --law data_constrained --flops 1e22 --unique-tokens 25B
moejax design --law leverage --flops 1e22 --sweep expert_expansion=2:128 --sweep granularity=1:32 --out landscape"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--law",
        required=True,
        type=law_or_fit,
        metavar="NAME|FIT|all",
        help="a law or its paper (see `moejax laws`), or fit.json of `moejax fit --out`, or its folder",
    )
    parser.add_argument("--constants", metavar="SET", help="a published set of constants (the law's first)")
    parser.add_argument(
        "--minimise",
        default="loss",
        metavar="WHAT",
        help="%(default)s, or with --target-loss: flops, lifetime_flops, …",
    )
    add_constraint_arguments(parser)
    shape = parser.add_argument_group("the shape", "what the law does not read stays as in --arch or --config")
    add_architecture_arguments(parser, required=False)
    shape.add_argument("--shape", action="store_true", help="choose shapes, counted exactly, from the start")
    shape.add_argument(
        "--exact-shape",
        action="store_true",
        help="build widths and heads nearest to the optimum, not the multiples that hardware likes",
    )
    around = parser.add_argument_group("around the optimum")
    around.add_argument(
        "--within",
        type=number,
        default=0.001,
        metavar="NATS",
        help="rise of the loss that bounds the flat region (%(default)s)",
    )
    around.add_argument(
        "--sweep",
        action="append",
        metavar="NAME=LOW:HIGH",
        help="the frontier along a constraint, with a figure in --out; given twice, a landscape over two choices",
    )
    around.add_argument(
        "--runs", type=source, metavar="RUNS", help="the table that the law was fitted to, for intervals"
    )
    around.add_argument("--bootstrap", type=resamples, default=0, metavar="COUNT", help="number of resamples of --runs")
    add_level(around, "the intervals")
    add_table_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--out", type=local, metavar="DIR", help="write design.json, and config.py to train it")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for options that exclude each other."""
    if not arguments.within > 0:
        raise UserError(f"--within is {arguments.within:g}; give a rise of the loss above 0, such as 0.001.")
    if arguments.law == "all" and (arguments.sweep or arguments.constants or arguments.runs):
        raise UserError("--sweep, --constants and --runs are of one law; name it with --law instead of all.")
    if (arguments.bootstrap > 0) != (arguments.runs is not None):
        raise UserError("--runs and --bootstrap belong together: intervals come from fits to resamples of the runs.")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the few programs of a fit or a design."""
    compile_quickly(optimised=False)
