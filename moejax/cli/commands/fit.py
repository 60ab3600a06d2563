"""Implement ``moejax fit``: fit a law's coefficients to a table of runs, with intervals and diagnostics."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from moejax import table_file
from moejax.cli.commands.fit_answers import answer, asked_of
from moejax.cli.commands.fit_options import fixed_of, law_of, penalty_of, search_of, starts_of
from moejax.cli.commands.run_table_options import read_table, read_without_words, splits_of
from moejax.cli.out_folder import out_folder, out_set
from moejax.cli.progress import progress
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.selection import held_out_runs, holdout
from moejax.fit.selection.metrics import predict
from moejax.fit.summary import summary
from moejax.fit.sweeps.ways_through_sweeps import ways_through_sweeps
from moejax.fit.tables.read_runs import ReadRuns, fitted_column
from moejax.fit.uncertainty import bootstrap
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.folder import check_replaceable, write_text, written_in
from moejax.interval import check_level
from moejax.json_text import finite
from moejax.report import render
from moejax.result import Result
from moejax.run_table import DataFrame
from moejax.say import say
from moejax.stored import write_json
from moejax.wording import listed


def run(arguments: argparse.Namespace) -> int:
    """Read runs, fit, resample, test on held-out runs, and print."""
    law = law_of(arguments)
    read = read_table(arguments, law)

    options: dict[str, Any] = {
        "penalty": penalty_of(arguments),
        "starts": starts_of(arguments),
        "search": search_of(arguments),
        "fixed": fixed_of(arguments),
        "seed": arguments.seed,
    }
    splits, asked = splits_of(read, arguments), asked_of(law, read.runs.output, tuple(options["fixed"]), arguments)
    level, stopped, predicted = check_level(arguments.level), False, None
    with out_folder(arguments.out), progress() as show:
        result = fit_law(law, read.runs, progress=show, **options)
        how = {"covariance": asked.covariance, "by": arguments.by}
        result = with_uncertainty(result, read.runs, **how, dropped=read.dropped)
        found = _found(result, read, asked.covariance, arguments)
        if arguments.smooth:
            best = read_without_words(argparse.Namespace(**{**vars(arguments), "smooth": False}), law)
            found["sweeps"] = ways_through_sweeps(result, read.runs, best.runs, level, how=how, **options)
        # The fit is written first. The following steps take long, may be stopped, or may fail.
        write_fit(arguments.out, summary(result, level, **found), result, read)
        if held_out := holdout.hold_out(law, read.runs, splits, progress=show, **options):
            predicted = held_out_runs.held_out_runs(held_out, read.rows, level, **how)
            found |= held_out_runs.found(held_out, predicted)
            write_fit(arguments.out, summary(result, level, **found), result, read, predicted)
        try:
            resampled = _resample(result, read, arguments, show) if arguments.bootstrap != 0 else None
            if resampled is not None:
                found["bootstrap"] = bootstrap.to_json(result, resampled, level)
            found |= answer(asked, result, read, resampled, level, arguments.by)
        except KeyboardInterrupt:
            if arguments.out:
                raise
            stopped = True
        said = summary(result, level, **found)
        write_fit(arguments.out, said, result, read, predicted)
    if stopped:
        say("", "Stopped; with --out DIR the same command would go on from there.")
    if arguments.out:
        say(written(arguments.out, predicted))
    render.show(said, as_json=arguments.json)
    return STOPPED if stopped else 0


def written(folder: Path, held_out: DataFrame | None) -> str:
    """Return a sentence with the files that ``write_fit`` wrote."""
    names = ["fit.json", "summary.txt", "predictions.csv", *([] if held_out is None else [HELD_OUT])]
    return f"Wrote {listed(names)} to {folder}."


HELD_OUT = "held_out.csv"
"""Table of the held-out runs with their prediction intervals."""
STOPPED = 130
"""Exit status after Ctrl-C, as for every command."""


def _found(result: FitResult, read: ReadRuns, covariance: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return further results that are known right after the fit, as plain data."""
    rows = [row for row in result.coefficient_rows(arguments.level) if row.name not in result.without_error]
    errors = {
        "kind": covariance,
        "by": arguments.by,
        "values": {row.name: row.error for row in rows},
        "level": arguments.level,
        "intervals": {row.name: (row.low, row.high) for row in rows},
    }
    return {
        "notes": list(read.notes),
        "standard_errors": finite(errors),
        # These arguments, with predictions.csv, reproduce the reading of the same runs.
        "read": {
            "loss": fitted_column(type(result.law), arguments.loss),
            "group": arguments.group,
            "weight": arguments.weight,
        },
    }


def _resample(result: FitResult, read: ReadRuns, arguments: argparse.Namespace, show: Progress) -> Bootstrap:
    return bootstrap.bootstrap(
        result,
        read.runs,
        arguments.bootstrap,
        by=arguments.by,
        seed=arguments.seed,
        progress=show,
        kept=arguments.out / "bootstrap.npz" if arguments.out else None,
    )


def write_fit(
    folder: Path | None, summary: Result, result: FitResult, read: ReadRuns, held_out: DataFrame | None = None
) -> None:
    """Write fit.json, summary.txt, predictions.csv and, for held-out runs, held_out.csv together, if a folder
    is given.
    """
    if folder is None:
        return
    predicted = predict(result.law, read.runs, result.output)
    rows = read.frame.assign(row=read.rows, predicted=predicted, residual=predicted - read.runs.loss)
    with out_set(folder):
        write_text(folder / "summary.txt", render.text(summary) + "\n")
        write_text(folder / "predictions.csv", table_file.csv_text(rows))
        if held_out is not None:
            write_text(folder / HELD_OUT, table_file.csv_text(held_out))
        elif HELD_OUT in written_in(folder) and (folder / HELD_OUT).exists():
            # The file belongs to an earlier fit in this folder.
            check_replaceable(folder / HELD_OUT)
            (folder / HELD_OUT).unlink()
        write_json(folder / "fit.json", summary.data)
