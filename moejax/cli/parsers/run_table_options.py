"""A table of runs at the command line: how it is read, and which of its runs are kept to test a fit."""

from __future__ import annotations

import argparse
from typing import Any

from moejax.cli.number import count


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a table of runs is read with."""
    table = parser.add_argument_group("reading the table")
    table.add_argument(
        "--map", action="append", default=[], metavar="OURS=THEIRS", help="a column, or arithmetic on columns"
    )
    table.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="CONDITION",
        help="keep the rows that meet it, as 'seed == 42 and tokens > 1B' (docs/fitting.md has the language)",
    )
    table.add_argument("--loss", default="loss", metavar="COLUMN", help="what is fitted (%(default)s)")
    table.add_argument("--group", metavar="COLUMN", help="rows that belong together (else: what shares its sizes)")
    table.add_argument("--weight", metavar="COLUMN", help="how often each row counts; 0 keeps it out")
    table.add_argument("--drop-invalid", action="store_true", help="leave out rows that cannot be, and say so")
    table.add_argument(
        "--drop-duplicates", action="store_true", help="leave out rows that repeat a run to the digit, and say so"
    )
    table.add_argument(
        "--best-by",
        metavar="COLUMNS",
        help="columns that were swept (learning_rate,batch_tokens): keep the best of rows that differ only in them",
    )
    table.add_argument(
        "--trust-units", action="store_true", help="sizes, tokens and FLOPs are right, however unlikely they look"
    )


def add_split_arguments(group: Any) -> None:
    """Add what says which runs are kept from a fit to test it."""
    group.add_argument(
        "--hold-out",
        action="append",
        default=[],
        metavar="COLUMN",
        help="test on the largest runs in it; COLUMN:LEAST on those from there on, COLUMN=VALUE on those that equal it",
    )
    group.add_argument("--each", metavar="COLUMN", help="hold out each of its values in turn; group: each architecture")
    group.add_argument("--folds", type=count(0, 10_000), default=0, metavar="COUNT", help="cross-validate over groups")
