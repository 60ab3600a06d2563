"""Define the options of a fit: law, penalty, fixed coefficients, initial guesses."""

from __future__ import annotations

import argparse
from typing import Any

from moejax.cli.number import SEEDS, number
from moejax.cli.parsers.options import add_repeated


def add_law_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option of the fitted law."""
    parser.add_argument("--law", metavar="NAME", help="one of `moejax laws`; a paper's --recipe needs none")
    add_formula_arguments(parser)


def add_formula_arguments(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the options of a law by formula, or of several, and of the signs of its coefficients."""
    group = parser.add_argument_group("a law by formula", "in it, what is no column is a coefficient")
    group.add_argument(
        "--form",
        metavar="FORMULA",
        **({"action": "append", "default": []} if several else {}),
        help="target = formula, with + - * / ^, exp, log, log2, log10, sqrt, sigmoid, min and max of columns and "
        "coefficients: 'loss = E + A/N^alpha + B/D^beta'",
    )
    if not several:
        group.add_argument(
            "--budget",
            metavar="FORMULA",
            help="what two of the columns cost, such as 'C = 6*N*D': --decide flops=1e24 then splits it at the least "
            "target",
        )
    for option, words in (("positive", "above 0"), ("negative", "below 0"), ("either", "of either sign")):
        group.add_argument(
            f"--{option}", default="", metavar="NAMES", help=f"coefficients that are {words}, separated by commas"
        )


def add_objective_arguments(group: Any) -> None:
    """Add the options of the objective."""
    group.add_argument("--penalty", default="huber", metavar="NAME", help="huber or squared (%(default)s)")
    group.add_argument("--delta", type=number, metavar="NUMBER", help="where Huber's penalty becomes linear (0.001)")
    group.add_argument(
        "--residual",
        default="log",
        metavar="NAME",
        help="residual of log loss (log) or of loss (nats) (%(default)s)",
    )
    add_repeated(group, "--fix", "NAME=VALUE", "hold a coefficient at a value")
    group.add_argument(
        "--seed", type=SEEDS, default=0, metavar="NUMBER", help="seed of starts and resamples (%(default)s)"
    )


def add_search_arguments(group: Any) -> None:
    """Add the options of the initial guesses, and of how many are optimized."""
    group.add_argument(
        "--starts",
        metavar="COUNT|NAME",
        help="number of starting points (2048), or a paper's grid: hoffmann (4,500), abnar (437,400)",
    )
    group.add_argument(
        "--every-start", action="store_true", help="follow every start to its end, as the papers do (slow)"
    )
