"""``moejax report``: the conclusions of a study, of any run table or of a fit, drawn and written as one page."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.cli.given_files import check_fit
from moejax.cli.number import RESAMPLES, number
from moejax.cli.out_folder import check_outputs, out_folder
from moejax.json_text import json_text

NAME = "report"
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

TABLES = (".parquet", ".csv", ".csv.gz", ".jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    from moejax.cli.run_table_options import add_table_arguments

    parser.add_argument("source", metavar="DIR|RUNS|FIT", help="folder of a study or a fit, run table, or fit.json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="for a table or a fit (NAME-report beside it)")
    table = parser.add_argument_group("a run table")
    table.add_argument(
        "--laws", default="", metavar="NAMES", help="to fit, separated by commas (what the columns allow)"
    )
    table.add_argument("--flops", type=number, metavar="NUMBER", help="budget to decide about (ten times the largest)")
    table.add_argument("--resamples", type=RESAMPLES, default=300, metavar="COUNT", help="bootstrap (%(default)s)")
    add_table_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the report's numbers on stdout as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Conclude, write, and print the answer."""
    source = _fit_in(Path(arguments.source))
    _check_source(source)
    if not source.is_dir():
        check_outputs(_out(source, arguments), OUTPUTS)
    if source.name.endswith(".json"):
        return _of_fit(source, arguments)
    from moejax.cli.progress import progress_display
    from moejax.report import render
    from moejax.report.conclusions import brief
    from moejax.report.findings import read
    from moejax.report.report import as_data, write_report
    from moejax.study.run import conclude

    of_table = source.name.endswith(TABLES)
    # A study's own folder is moejax's; there, its report is renewed.
    with out_folder(_out(source, arguments)) if of_table else nullcontext(), progress_display() as update:
        concluded = _of_table(source, arguments, update) if of_table else conclude(source, update)
        update(1.0, "drawing")
        path = write_report(concluded)
    if arguments.json:
        print(json_text(as_data(concluded)))
    else:
        render.show(brief(read(concluded)))
        print(f"report: {path.resolve()}")
    return 0


def _fit_in(source: Path) -> Path:
    """The fit of a folder of ``moejax fit``; anything else as it is."""
    fit = source / "fit.json"
    return fit if fit.is_file() and not (source / "study.json").exists() else source


def _check_source(source: Path) -> None:
    """Say at once, and not after seconds of imports, that there is nothing to report on."""
    if source.name.endswith(".json"):
        check_fit(source)
    elif source.name.endswith(TABLES):
        run_table.check_file(source)
    else:
        from moejax.study.storage import identity

        identity(source)


def _of_table(source: Path, arguments: argparse.Namespace, update: Any) -> Any:
    from moejax.cli.run_table_options import read_table
    from moejax.laws.predict import law_name
    from moejax.study.run import conclude_table

    arguments.runs = source
    read = read_table(arguments, ())
    frame = read.frame if arguments.loss == "loss" else read.frame.assign(loss=read.frame[arguments.loss])
    return conclude_table(
        frame if arguments.group is None else frame.assign(group=frame[arguments.group].astype(str)),
        source.name,
        _out(source, arguments),
        update,
        laws=[law_name(name) for name in arguments.laws.split(",") if name],
        flops=arguments.flops,
        resamples=arguments.resamples,
        notes=read.notes,
    )


def _of_fit(source: Path, arguments: argparse.Namespace) -> int:
    from moejax.cli.progress import progress_display
    from moejax.fit.fit_result import load
    from moejax.papers.plots import ALL
    from moejax.report.fit_report import as_data, write_fit_report

    fit = load(source)
    with out_folder(_out(source, arguments)) as folder, progress_display() as update:
        path = write_fit_report(fit, source, folder, ALL, update)
        update(1.0, "drawn")
    print(json_text(as_data(fit, source)) if arguments.json else f"{fit.summary()}\nreport: {path.resolve()}")
    return 0


def _out(source: Path, arguments: argparse.Namespace) -> Path:
    return arguments.out or source.parent / f"{source.name.split('.')[0]}-report"
