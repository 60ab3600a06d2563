"""Define the options of ``moejax fit``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moejax.cli.number import resamples
from moejax.cli.out_folder import local
from moejax.cli.parsers.fit_options import add_law_argument, add_objective_arguments, add_search_arguments
from moejax.cli.parsers.options import add_level, add_repeated
from moejax.cli.parsers.run_table_options import RUNS_HELP, add_split_arguments, add_table_arguments
from moejax.cli.process import compile_quickly
from moejax.errors import UserError
from moejax.run_sources.source import source
from moejax.wording import listed

OUTPUTS = ("fit.json", "summary.txt", "predictions.csv", "bootstrap.npz")
HELP = "Fit a law to a table of runs."
RECIPES = {
    "launch-check": ("law", "hold_out", "pilot", "correct"),
    "domains": ("law", "hold_out", "shares"),
    "isoflop": ("level",),
    "zhao": ("hold_out", "starts", "bootstrap"),
    "tian": ("starts", "level"),
    "abnar": ("hold_out", "starts", "bootstrap", "level"),
}
"""Papers' procedures, with the options that each reads in addition to those of its table and ``OF_EVERY_RECIPE``."""
OF_EVERY_RECIPE = ("seed", "json", "out")
OF_RECIPES_ALONE = ("pilot", "correct", "shares")
"""Options that only recipes read."""
NOT_OF_TWO_LAWS = ("bootstrap", "profile", "influence", "fix", "best_by", "budget")
"""Options that only the fit of one law reads."""
EXAMPLE = """\
moejax fit runs.parquet --law effective_params --bootstrap 1000
moejax fit paper.csv --law chinchilla --map params_active=Na --map tokens='step * 520000' --where "seed == 42"
moejax fit runs.csv --law chinchilla --decide flops=1e24 --profile 'N*' --influence 'N*' --bootstrap 1000
moejax fit runs.csv --law chinchilla --fix irreducible=1.6 --hold-out tokens --json
moejax fit runs.csv --form 'loss = E + A/N^alpha + B/D^alpha' --bootstrap 1000
moejax fit runs.csv --form 'loss = E + A/N^a + B/D^b' --budget 'C = 6*N*D' --decide flops=1e24 --profile 'N*'
moejax fit sweep.csv --form 'lr = k*N^a*D^b*width^c' --best-by lr
moejax fit scores.csv --law error_from_loss --loss-law chinchilla --predict params_active=7B,tokens=1T
moejax fit runs.csv --law routed --hold-out router_type=S-Base --hold-out num_experts:256 --weight seeds
moejax fit isoflops.csv --recipe isoflop
moejax fit proxies.csv --law effective_params --recipe launch-check --hold-out params_active:1e10 --correct gamma"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("runs", type=source, metavar="RUNS", help=RUNS_HELP)
    add_law_argument(parser)
    add_table_arguments(parser)
    fitting = parser.add_argument_group("fitting")
    add_objective_arguments(fitting)
    add_search_arguments(fitting)
    fitting.add_argument(
        "--loss-law",
        metavar="NAME|FORMULA",
        help="for a law of scores: the law of the loss that it stands on, fitted to the same table; predictions and "
        "decisions are then of the score of a run of any size",
    )
    trust = parser.add_argument_group("trusting")
    trust.add_argument(
        "--covariance",
        default="sandwich",
        metavar="NAME",
        help="what standard errors are computed from: sandwich or gauss-newton (%(default)s)",
    )
    trust.add_argument(
        "--bootstrap", type=resamples, default=0, metavar="COUNT", help="number of resamples for intervals (0)"
    )
    trust.add_argument("--by", default="group", metavar="WHAT", help="what is resampled: group or run (%(default)s)")
    add_level(trust, "the intervals")
    add_split_arguments(trust)
    _add_answer_arguments(parser.add_argument_group("asking the fitted law (each may be repeated)"))
    whole = parser.add_argument_group("a whole procedure instead")
    whole.add_argument("--recipe", metavar="NAME", help=", ".join(RECIPES))
    whole.add_argument("--pilot", type=Path, metavar="RUNS", help="the large training's first losses, for launch-check")
    whole.add_argument(
        "--correct", default="", metavar="NAME", help="coefficient that launch-check refits to the held-out runs alone"
    )
    whole.add_argument(
        "--shares",
        metavar="NAME=SHARE,…",
        help="shares of losses loss_NAME, for domains (default: columns share_NAME)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    parser.add_argument("--out", type=local, metavar="DIR", help="write fit.json, summary.txt and predictions.csv")


def _add_answer_arguments(group: Any) -> None:
    add_repeated(
        group,
        "--decide",
        "NAME=VALUE,…",
        "what the law says is best there, such as flops=1e24 or flops=1e24,expansion=16",
    )
    add_repeated(
        group,
        "--predict",
        "NAME=VALUE,…",
        "a run that is not trained yet, such as params_active=7B,tokens=1T, and where its loss should fall",
    )
    add_repeated(
        group,
        "--profile",
        "NAME",
        "values that the runs do not reject, of a coefficient, of a decision (N*, D*, …), of a predicted loss",
    )
    add_repeated(group, "--influence", "NAME", "the three runs that decide it, checked by fitting without them")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for an unknown recipe, a missing law, or options that two chained laws do not support."""
    if arguments.recipe is not None and arguments.recipe not in RECIPES:
        raise UserError(f"There is no recipe {arguments.recipe}; known are {', '.join(RECIPES)}.")
    if arguments.recipe is not None and arguments.form is not None:
        raise UserError(
            f"--form is a law, and --recipe {arguments.recipe} a whole procedure with laws of the catalogue; leave one "
            f"out."
        )
    if unread := _unread(arguments):
        raise UserError(unread)
    if arguments.law is None and arguments.form is None and "law" in RECIPES.get(arguments.recipe or "", ("law",)):
        raise UserError(
            "There is no law to fit; give --law NAME (`moejax laws` lists them), --form FORMULA, or a paper's --recipe."
        )
    if arguments.loss_law is not None and (given := [name for name in NOT_OF_TWO_LAWS if getattr(arguments, name)]):
        raise UserError(
            f"--loss-law fits two laws, one on the other, and has no {_options(given[:1])}; leave it out, or fit each "
            f"law by itself for it."
        )


def _unread(arguments: argparse.Namespace) -> str:
    """Return an error about given options that are not read; empty if there is none."""
    recipe, given = arguments.recipe, _given(arguments)
    if recipe is None:
        alone = [name for name in given if name in OF_RECIPES_ALONE]
        readers = [f"--recipe {name}" for name, read in RECIPES.items() if {*alone} & {*read}]
        joint = "does" if len(readers) == 1 else "do"
        return f"A fit of one law does not read {_options(alone)}; {listed(readers)} {joint}." if alone else ""
    table = argparse.ArgumentParser()
    add_table_arguments(table)
    read = (*RECIPES[recipe], *OF_EVERY_RECIPE)
    unread = [name for name in given if name not in (*read, "runs", "recipe", *vars(table.parse_args([])))]
    if unread:
        return (
            f"--recipe {recipe} does not read {_options(unread)}; leave that out. Besides the options of "
            f"the table it reads {_options(read)}."
        )
    if len(arguments.hold_out) > 1:
        return (
            f"--recipe {recipe} holds out once, and --hold-out is given {len(arguments.hold_out)} times; give it once."
        )
    return ""


def _given(arguments: argparse.Namespace) -> list[str]:
    """Return the options that differ from their defaults."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = vars(parser.parse_args(["runs.csv"]))
    return [name for name, value in usual.items() if getattr(arguments, name) != value]


def _options(names: Sequence[str]) -> str:
    return listed(f"--{name.replace('_', '-')}" for name in names)


def prepare(arguments: argparse.Namespace) -> None:
    """Reduce the compile time of the few programs of a fit, unless the search takes longer."""
    compile_quickly(optimised=any((arguments.recipe, arguments.starts, arguments.every_start, arguments.each)))


def command(arguments: argparse.Namespace) -> str:
    """Return the name of the implementing module in ``moejax.cli.commands``."""
    if arguments.loss_law is not None:
        return "fit_chained"
    return "fit" if arguments.recipe is None else "fit_recipes"
