"""Write a fit to a folder: fit.json, summary.txt, predictions.csv and, for held-out runs, held_out.csv."""

from __future__ import annotations

from pathlib import Path

from moejax import table_file
from moejax.fit.fit_result import FitResult
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import ReadRuns
from moejax.folder import check_replaceable, one_set, write_text, written_in
from moejax.report import render
from moejax.result import Result
from moejax.run_table import DataFrame
from moejax.stored import write_json
from moejax.wording import listed

HELD_OUT = "held_out.csv"
"""File of the held-out runs with their prediction intervals."""


def written(folder: Path, has_held_out: bool) -> str:
    """Return a sentence that lists the files of ``write_fit``."""
    names = ["fit.json", "summary.txt", "predictions.csv", *([HELD_OUT] if has_held_out else [])]
    return f"Wrote {listed(names)} to {folder}."


def write_fit(
    folder: Path, summary: Result, result: FitResult, read: ReadRuns, held_out: DataFrame | None = None
) -> None:
    """Write the files of a fit to a folder; write held_out.csv only if runs were held out."""
    predicted = predict(result.law, read.runs, result.output)
    rows = read.frame.assign(row=read.rows, predicted=predicted, residual=predicted - read.runs.loss)
    with one_set():
        write_text(folder / "summary.txt", render.text(summary) + "\n")
        write_text(folder / "predictions.csv", table_file.csv_text(rows))
        if held_out is not None:
            write_text(folder / HELD_OUT, table_file.csv_text(held_out))
        elif HELD_OUT in written_in(folder) and (folder / HELD_OUT).exists():
            # The file belongs to an earlier fit in this folder.
            check_replaceable(folder / HELD_OUT)
            (folder / HELD_OUT).unlink()
        write_json(folder / "fit.json", summary.data)
