"""Implement ``moejax report``: write the conclusions of a study, run table or fit as one page with figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from moejax import run_table
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.out_folder import out_folder
from moejax.cli.parsers.report import out_of
from moejax.cli.progress import progress_display
from moejax.cli.validation import fit_in
from moejax.fit.fit_result import load_of_runs
from moejax.json_text import json_text
from moejax.laws.predict import law_name
from moejax.papers.plots import ALL
from moejax.papers.recipes import STUDY_RECIPES
from moejax.report import fit_report, render
from moejax.report.conclusions import brief
from moejax.report.findings import read
from moejax.report.report import as_data, write_report
from moejax.say import say
from moejax.study.run import conclude, conclude_table


def run(arguments: argparse.Namespace) -> int:
    """Conclude, write the report, and print the answer."""
    source = fit_in(Path(arguments.source))
    if source.name.endswith(".json"):
        return _of_fit(source, arguments)

    of_table = source.name.endswith(run_table.ENDINGS)
    # A study's own folder belongs to moejax, so its report is replaced there.
    with out_folder(out_of(source, arguments) if of_table else None), progress_display() as update:
        concluded = _of_table(source, arguments, update) if of_table else conclude(source, update, STUDY_RECIPES)
        update(1.0, "drawing")
        path = write_report(concluded)
    if arguments.json:
        print(json_text(as_data(concluded)))
    else:
        render.show(brief(read(concluded)))
        say(f"report: {path.resolve()}", file=sys.stdout)
    return 0


def _of_table(source: Path, arguments: argparse.Namespace, update: Any) -> Any:
    arguments.runs = source
    read = read_table(arguments, ())
    frame = read.frame if arguments.loss == "loss" else read.frame.assign(loss=read.frame[arguments.loss])
    return conclude_table(
        frame.assign(group=[f"group {number + 1}" for number in read.runs.group]),
        source.name,
        out_of(source, arguments),
        update,
        laws=[law_name(name) for name in arguments.laws.split(",") if name],
        flops=arguments.flops,
        resamples=arguments.resamples,
        notes=read.notes,
    )


def _of_fit(source: Path, arguments: argparse.Namespace) -> int:
    fit = load_of_runs(source)
    folder = out_of(source, arguments)
    with out_folder(folder), progress_display() as update:
        path = fit_report.write_fit_report(fit, source, folder, ALL, update)
        update(1.0, "drawn")
    render.show(fit_report.summary(fit, source), as_json=arguments.json)
    if not arguments.json:
        say("", f"report: {path.resolve()}", file=sys.stdout)
    return 0
