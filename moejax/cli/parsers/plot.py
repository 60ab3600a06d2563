"""Define the options of ``moejax plot``."""

from __future__ import annotations

import argparse
from pathlib import Path

from moejax.cli.out_folder import local
from moejax.cli.parsers.options import add_active_convention
from moejax.cli.parsers.run_table_options import add_table_arguments
from moejax.errors import UserError

HELP = (
    "Draw figures by name: the papers' own from their laws, or from your fit and runs, and pictures of a fit or a run."
)
EXAMPLE = """\
moejax plot --list
moejax plot zhao-3 abnar-4 tian-1b
moejax plot --paper abnar --synthetic
moejax plot zhao --fit fit.json --runs runs.parquet --out figures --format png,svg,pdf
moejax plot fit profile influence starts --fit fit.json --runs runs.csv
moejax plot zhao-5 --runs compared/predicted_vs_actual.csv
moejax plot zhao-6 zhao-12 --runs runs.csv --hold-out params_total
moejax plot plan --runs plan/plan.json
moejax plot restarts --runs runs/quickstart"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="figures, or a paper: zhao, abnar, chapter_002, tian, li"
    )
    parser.add_argument(
        "--paper",
        metavar="NAME",
        help="every numbered figure of a document (zhao, abnar, chapter_002, tian, li), or why one is not drawn",
    )
    parser.add_argument("--list", action="store_true", help="name every figure with what it draws")
    parser.add_argument("--fit", type=Path, metavar="FILE", help="fit.json of moejax fit: draw its law")
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="TABLE",
        help="a run table, or the table that a figure names; a study's folder; plan.json",
    )
    parser.add_argument(
        "--estimand", metavar="NAME", help="coefficient that influence is about (the last, if not given)"
    )
    parser.add_argument(
        "--hold-out",
        metavar="COLUMN",
        help="runs that figures which fit to --runs predict without: COLUMN, COLUMN:LEAST or COLUMN=VALUE (none)",
    )
    parser.add_argument("--synthetic", action="store_true", help="synthetic data where a table is needed")
    parser.add_argument(
        "--format",
        default="png,svg",
        metavar="NAMES",
        help="formats, of png, svg and pdf, separated by commas (%(default)s)",
    )
    parser.add_argument("--out", type=local, default=Path("figures"), metavar="DIR", help="output folder (%(default)s)")
    parser.add_argument("--gallery", type=Path, metavar="DIR", help="write DIR/gallery.md with every figure, and stop")
    add_active_convention(parser)
    parser.add_argument("--json", action="store_true", help="print the figures' data on stdout as JSON")
    add_table_arguments(parser)


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if no figure is named."""
    if arguments.paper is not None and arguments.names:
        raise UserError("--paper draws all figures of a document; name figures, or give --paper alone.")
    if not (arguments.names or arguments.paper or arguments.list or arguments.gallery):
        raise UserError("No figure was named; moejax plot --list names all, moejax plot zhao draws a paper's.")
