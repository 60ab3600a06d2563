"""Define the options of ``moejax curves``."""

from __future__ import annotations

import argparse
from pathlib import Path

from moejax.cli.number import LENGTHS, SEEDS, count, whole_number
from moejax.cli.out_folder import local
from moejax.cli.parsers.options import add_level, add_repeated
from moejax.cli.process import compile_quickly
from moejax.errors import UserError
from moejax.run_sources.source import has_prefix

OUTPUTS = ("fit.json", "summary.txt", "predictions.csv", "curves.png", "curves.svg", "curves.csv", "schedule.csv")
HELP = "Fit a law to loss curves: what any schedule of learning rates leads to, and which is best."
EXAMPLE = """\
moejax curves runs/quickstart --only 'small/*'
moejax curves cosine.csv constant.csv wsd.csv --warmup 2000 --hold-out wsd --out curves
moejax curves curves.csv --map step=iteration --map loss=val_loss --law momentum
moejax curves curves.csv --predict steps=48K,decay_share=.2 --predict steps=96K,decay_share=1,decay_shape=cosine
moejax curves curves.csv --best 48K --out curves
moejax curves new.csv --law curves/fit.json --predict steps=96K,decay_share=.2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "curves",
        nargs="+",
        metavar="CURVES",
        help="tables (CSV, Parquet, JSON lines) with columns step or tokens, lr, loss and, of several runs, run; "
        "metrics.jsonl, or a folder with some, of a training or a study; also s3://… and gs://…; TensorBoard's folders "
        "and MLflow's databases and folders",
    )
    parser.add_argument(
        "--law",
        default="multi_power",
        metavar="NAME",
        help="multi_power or momentum, or a folder or fit.json of this command, to ask without a fit (%(default)s)",
    )
    reading = parser.add_argument_group("reading")
    add_repeated(reading, "--map", "OURS=THEIRS", "a column by theirs, or by arithmetic on theirs")
    reading.add_argument("--loss", metavar="COLUMN", help="the losses, such as validation_loss (loss)")
    add_repeated(reading, "--where", "CONDITION", "rows to read, such as \"split == 'train'\" (all)")
    add_repeated(reading, "--only", "PATTERN", "curves to read, such as 'small/*' (all)")
    reading.add_argument(
        "--warmup", type=count(0), metavar="STEPS", help="in which the rate rose from 0, where that is not logged"
    )
    add_repeated(parser, "--fix", "NAME=VALUE", "a coefficient that is given and not fitted")
    trust = parser.add_argument_group("trusting")
    add_repeated(trust, "--hold-out", "PATTERN", "curves to predict and not to fit")
    trust.add_argument(
        "--blocks",
        type=whole_number,
        metavar="COUNT",
        help="stretches of a curve, of two points or more, that count as one draw each; 1 where curves are many (8)",
    )
    add_level(trust, "ranges")
    trust.add_argument(
        "--starts", type=count(1), default=128, metavar="COUNT", help="points that the search starts from (%(default)s)"
    )
    trust.add_argument("--seed", type=SEEDS, default=0, metavar="NUMBER", help="seed of the starts (%(default)s)")
    asking = parser.add_argument_group("asking the fitted law")
    add_repeated(
        asking,
        "--predict",
        "NAME=VALUE,…",
        "a schedule: steps, and decay_share, decay_shape, final_share, warmup, peak; may be repeated",
    )
    asking.add_argument("--best", type=LENGTHS, metavar="STEPS", help="the schedule of least loss after so many steps")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument(
        "--out", type=local, metavar="DIR", help="write fit.json, summary.txt, predictions.csv and a figure"
    )


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for missing files and invalid options."""
    # The import of fsspec is slow, and only this check needs it.
    from moejax.storage import is_remote

    for path in arguments.curves:
        if (
            not is_remote(path)
            and not has_prefix(path)
            and "://" not in path
            and not Path(path.partition("#")[0]).exists()
        ):
            raise UserError(f"There is no {path}; name tables of curves, or folders with metrics.jsonl.")
    if arguments.blocks is not None and arguments.blocks < 1:
        raise UserError("--blocks is 0; a curve is at least one stretch.")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the few programs of a fit."""
    compile_quickly()
