"""Define the options of ``moejax compare``."""

from __future__ import annotations

import argparse

from moejax.cli.out_folder import local
from moejax.cli.parsers.fit_options import add_formula_arguments, add_objective_arguments
from moejax.cli.parsers.run_table_options import RUNS_HELP, add_split_arguments, add_table_arguments
from moejax.cli.process import compile_quickly
from moejax.run_sources.source import source

OUTPUTS = ("compare.json", "compare.md", "predicted_vs_actual.csv")
HELP = "Fit every law that a table of runs allows, and test all on the same held-out runs."
EXAMPLE = """\
moejax compare runs.parquet --hold-out tokens
moejax compare runs.csv --hold-out flops --fix irreducible=1.6 --penalty squared
moejax compare runs.csv --laws chinchilla --form 'loss = E + A/N^alpha + B/D^alpha' --form 'loss = E + A/(N*D)^alpha'
moejax compare runs.csv --laws chinchilla,effective_params,zhao --folds 5 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("runs", type=source, metavar="RUNS", help=RUNS_HELP)
    parser.add_argument(
        "--laws", metavar="NAMES", help="names of laws, separated by commas, or all (all; with --form, none)"
    )
    add_formula_arguments(parser, several=True)
    add_table_arguments(parser)
    add_objective_arguments(parser.add_argument_group("fitting (every law alike)"))
    add_split_arguments(parser.add_argument_group("trusting (the largest in tokens, if none is given)"))
    parser.add_argument("--verbose", action="store_true", help="give the reason for each law that is left out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--out", type=local, metavar="DIR", help="write compare.json, compare.md and the figure")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the few programs of a fit. Holding out each group takes many fits."""
    compile_quickly(optimised=arguments.each is not None)
