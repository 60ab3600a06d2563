"""Define the options for reading a table of runs and for its held-out splits."""

from __future__ import annotations

import argparse
from typing import Any

from moejax.cli.number import count
from moejax.cli.parsers.options import add_repeated

RUNS_HELP = (
    "CSV, Parquet or JSON-lines file, one row per run; a study's folder; or where a tracker keeps runs: a folder or "
    "database of MLflow, W&B or TensorBoard, mlflow:URL, wandb:ENTITY/PROJECT, hf:OWNER/NAME"
)


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for reading a table of runs."""
    table = parser.add_argument_group("reading the table")
    add_repeated(table, "--map", "OURS=THEIRS", "take our column from theirs, or from arithmetic on theirs")
    add_repeated(
        table,
        "--where",
        "CONDITION",
        "keep the rows for which it holds, such as 'seed == 42 and tokens > 1B' (syntax: docs/fitting.md)",
    )
    table.add_argument("--loss", default="loss", metavar="COLUMN", help="column of the loss (%(default)s)")
    table.add_argument(
        "--group",
        metavar="COLUMN",
        help="column that names the group of a row (default: rows of equal sizes are a group)",
    )
    table.add_argument("--weight", metavar="COLUMN", help="column of each row's weight; a row of weight 0 is left out")
    table.add_argument(
        "--drop-invalid", action="store_true", help="leave out rows with impossible values, and report them"
    )
    table.add_argument(
        "--drop-duplicates", action="store_true", help="leave out rows that repeat another one exactly, and report them"
    )
    table.add_argument(
        "--best-by",
        metavar="COLUMNS",
        help="columns that were swept (learning_rate,batch_tokens): keep the best of rows that differ only in them",
    )
    table.add_argument(
        "--smooth",
        action="store_true",
        help="with --best-by: take the minimum of a quadratic through the runs near the best one, and its precision",
    )
    table.add_argument(
        "--trust-units", action="store_true", help="accept sizes, tokens and FLOPs whose units look wrong"
    )


def add_split_arguments(group: Any) -> None:
    """Add the options that select held-out runs."""
    add_repeated(
        group,
        "--hold-out",
        "COLUMN",
        "test on the runs with the largest value in COLUMN; COLUMN:LEAST: LEAST or more; COLUMN=VALUE: VALUE",
    )
    group.add_argument(
        "--each", metavar="COLUMN", help="hold out each value of COLUMN in turn; `group` holds out each architecture"
    )
    group.add_argument(
        "--folds",
        type=count(0, 10_000),
        default=0,
        metavar="COUNT",
        help="number of folds of a cross-validation over groups",
    )
