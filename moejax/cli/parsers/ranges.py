"""Define the options of ``moejax ranges``."""

from __future__ import annotations

import argparse

from moejax.cli.number import number, share
from moejax.cli.parsers.options import add_level
from moejax.cli.process import compile_quickly
from moejax.cli.validation import law_or_fit
from moejax.errors import UserError

HELP = (
    "Practical ranges under a five-factor law: active experts G and shared share S within a loss of the best, and the "
    "active share N_a/N up to which more active parameters pay (Tables 3 and 4, Algorithm 1 of Zhao et al.)."
)
EXAMPLE = """\
moejax ranges
moejax ranges deepseek-v3.1 kimi-k2 --law zhao/fit.json
moejax ranges --params-total 671B --params-active 37B --tolerance 0.002 --gain 0.001 --gain 0.005"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="published models, at their authors' sizes (the nine of Table 3)"
    )
    parser.add_argument(
        "--law",
        type=law_or_fit,
        default="zhao",
        metavar="NAME|FIT",
        help="a five-factor law, or fit.json of `moejax fit --out`, or its folder (%(default)s)",
    )
    parser.add_argument("--params-total", type=number, metavar="NUMBER", help="N of a model of yours")
    parser.add_argument("--params-active", type=number, metavar="NUMBER", help="its N_a")
    parser.add_argument(
        "--tolerance",
        type=number,
        default=0.001,
        metavar="NATS",
        help="loss above the best that a range of G or S allows, nats per token (%(default)s)",
    )
    parser.add_argument(
        "--gain",
        type=number,
        action="append",
        metavar="NATS",
        help="least that one more step of N_a/N must gain, nats per token; may be repeated (0.001 and 0.005)",
    )
    parser.add_argument(
        "--step", type=share, default=0.01, metavar="SHARE", help="step of N_a/N in Algorithm 1 (%(default)s)"
    )
    parser.add_argument(
        "--active-experts", type=number, metavar="NUMBER", help="G at which N_a/N is asked (the law's best)"
    )
    parser.add_argument(
        "--shared-share", type=number, metavar="SHARE", help="S at which N_a/N is asked (the law's best)"
    )
    add_level(parser, "a fit's intervals")
    # The option is defined only to reject it with an explanation.
    parser.add_argument("--flops", type=number, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for invalid sizes, or if both models and sizes are given."""
    total, active = arguments.params_total, arguments.params_active
    if arguments.flops is not None:
        size = "N" if total is None else f"{total:g}"
        raise UserError(
            f"Ranges know no budget, as tokens add the same loss everywhere: --flops decides N_a. moejax design --law "
            f"{arguments.law} --flops {arguments.flops:g} --params-total {size} gives params_active; then moejax "
            f"ranges --params-total {size} --params-active that."
        )
    if (total is None) != (active is None):
        raise UserError("--params-total and --params-active belong together: the ranges depend on both.")
    if arguments.models and total is not None:
        raise UserError("Models have sizes of their own; give models, or --params-total and --params-active.")
    if total is not None and not 1000 <= active <= total < 1e18:
        raise UserError(
            f"--params-active is {active:g} and --params-total {total:g}; active parameters are at least 1000 and "
            "at most all of them, and these fewer than 1e18."
        )
    given = {"--tolerance": [arguments.tolerance], "--gain": arguments.gain or []}
    for option, values in given.items():
        for value in values:
            if not 0 < value < 100:
                raise UserError(f"{option} is {value:g} nats; give a number above 0 and below 100, such as 0.001.")
    if not 0.001 <= arguments.step <= 0.5:
        raise UserError(f"--step is {arguments.step:g}; give a share of N from 0.001 to 0.5.")
    if arguments.active_experts is not None and not 0 < arguments.active_experts < 1e6:
        raise UserError(f"--active-experts is {arguments.active_experts:g}; give a number above 0 and below 1e6.")
    if arguments.shared_share is not None and not 0 <= arguments.shared_share <= 1:
        raise UserError(f"--shared-share is {arguments.shared_share:g}; give a number from 0 to 1.")


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the law's formulas, each of which is computed once."""
    compile_quickly(optimised=False)
