"""Define the options of ``moejax leverage``."""

from __future__ import annotations

import argparse

from moejax.cli.number import SEEDS, number, resamples
from moejax.cli.parsers.options import add_level, add_repeated
from moejax.cli.parsers.run_table_options import add_table_arguments
from moejax.cli.process import compile_quickly
from moejax.cli.validation import law_or_fit
from moejax.errors import UserError
from moejax.run_sources.source import source

HELP = "Efficiency leverage of A over B: the FLOPs that B needs for A's loss, per FLOP of A, with an interval."
EXAMPLE = """\
moejax leverage 'runs.parquet:num_experts>0' 'runs.parquet:num_experts==0'
moejax leverage mixtures.csv dense.csv --flops 1e22 --json
moejax leverage 'runs.csv:variant==1' 'runs.csv:variant==0' --fix irreducible=1.6 --fix exponent=-0.094
moejax leverage expansion=16 expansion=1 --law effective_params --flops 1e24
moejax leverage V=1 V=0 --law runs/fit/fit.json --flops 1e21
moejax leverage kimi-k2 glm-4.5 --law zhao --flops 1e24
moejax leverage expansion=16 expansion=1 --law runs/fit/fit.json --runs runs.csv --bootstrap 200 --flops 1e21"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    family = (
        "a table of runs, RUNS:CONDITION for some of them; with --law a published model, or what its designs hold, "
        "NAME=VALUE,…"
    )
    parser.add_argument("a", metavar="A", help=family)
    parser.add_argument("b", metavar="B", help="the same, of the other family")
    parser.add_argument(
        "--law",
        type=law_or_fit,
        metavar="NAME|FIT",
        help="a law of the loss or its paper, or fit.json of `moejax fit --out`, or its folder",
    )
    parser.add_argument(
        "--flops", type=number, action="append", metavar="NUMBER", help="A's budget; may be repeated (A's, of tables)"
    )
    add_repeated(
        parser, "--fix", "NAME=VALUE", "hold irreducible or exponent of both tables' loss-compute curves at a value"
    )
    add_level(parser, "the intervals")
    parser.add_argument(
        "--runs", type=source, metavar="RUNS", help="the table that the law was fitted to, for an interval"
    )
    parser.add_argument("--bootstrap", type=resamples, default=0, metavar="COUNT", help="number of resamples of --runs")
    parser.add_argument(
        "--seed", type=SEEDS, default=0, metavar="NUMBER", help="seed of starts and resamples (%(default)s)"
    )
    add_table_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for options that require or exclude each other."""
    if (arguments.bootstrap > 0) != (arguments.runs is not None):
        raise UserError("--runs and --bootstrap belong together: intervals come from fits to resamples of the runs.")
    if arguments.law and arguments.fix:
        raise UserError(
            "--fix is for the loss-compute curves of tables, and a law has its coefficients; leave one out."
        )
    if arguments.law and not arguments.flops:
        raise UserError("Under a law leverage is asked at a budget; give --flops, such as 1e24.")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the few programs of a fit or a design."""
    compile_quickly(optimised=False)
