"""Define the options of ``moejax report``."""

from __future__ import annotations

import argparse
from pathlib import Path

from moejax import run_table
from moejax.cli.number import number, resamples
from moejax.cli.out_folder import check_outputs, local
from moejax.cli.parsers.run_table_options import add_table_arguments
from moejax.cli.validation import fit_in, validate_fit
from moejax.errors import UserError
from moejax.study.storage import identity
from moejax.wording import listed

OUTPUTS = ("report.html", "report.md", "report.json", "runs.parquet")
HELP = (
    "One HTML page, with Markdown and JSON beside it: from the folder of a trained study, from a table of runs (to "
    "which laws are fitted), or from the folder or fit.json of moejax fit."
)
EXAMPLE = """\
  moejax report runs/quickstart
  moejax report runs.csv --map params_active=N_a --map params_total=N --flops 1e24
  moejax report fit
  moejax report runs/quickstart --json > conclusions.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("source", metavar="DIR|RUNS|FIT", help="folder of a study or a fit, run table, or fit.json")
    parser.add_argument(
        "--out", type=local, metavar="DIR", help="output folder, for a table or a fit (default: NAME-report beside it)"
    )
    _add_options_of_a_table(parser)
    parser.add_argument("--json", action="store_true", help="print the report's numbers on stdout as JSON")


def _add_options_of_a_table(parser: argparse.ArgumentParser) -> None:
    table = parser.add_argument_group("a run table")
    table.add_argument(
        "--laws", default="", metavar="NAMES", help="laws to fit, separated by commas (all that the columns allow)"
    )
    table.add_argument(
        "--flops", type=number, metavar="NUMBER", help="budget of the decisions (ten times that of the largest run)"
    )
    table.add_argument(
        "--resamples", type=resamples, default=300, metavar="COUNT", help="number of bootstrap resamples (%(default)s)"
    )
    add_table_arguments(parser)


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if there is nothing to report on, or the report would replace a file that moejax did not
    write.
    """
    source = fit_in(Path(arguments.source))
    if source.name.endswith(".json"):
        validate_fit(source)
    elif source.name.endswith(run_table.ENDINGS):
        run_table.check_source(source)
    else:
        identity(source)
    if not source.name.endswith(run_table.ENDINGS):
        _check_options(source, arguments)
    if not source.is_dir():
        check_outputs(out_of(source, arguments), OUTPUTS)


def _check_options(source: Path, arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for options of run tables with another source, or another output folder than a
    study's own.
    """
    defaults = argparse.ArgumentParser(add_help=False)
    _add_options_of_a_table(defaults)
    asked = [name for name, value in vars(defaults.parse_args([])).items() if getattr(arguments, name) != value]
    asked += ["out"] if source.is_dir() and arguments.out else []
    if asked:
        kind, table = ("a study", source / run_table.TABLE) if source.is_dir() else ("a fit", "its run table")
        named = listed([f"--{name.replace('_', '-')}" for name in asked])
        them = "it" if len(asked) == 1 else "them"
        raise UserError(
            f"{source} is {kind}, whose report has no {named}; leave {them} out, or give {table} for a report of these "
            f"runs."
        )


def out_of(source: Path, arguments: argparse.Namespace) -> Path:
    """Return the folder of the report."""
    return arguments.out or source.parent / f"{source.name.split('.')[0]}-report"
