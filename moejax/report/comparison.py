"""Write a comparison of laws to a folder: compare.json, compare.md and a figure of predicted against measured
values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moejax.fit.selection.comparison import Comparison
from moejax.fit.tables.read_runs import ReadRuns
from moejax.folder import write_json, write_text
from moejax.report import render
from moejax.report.figures.figure import write_figure
from moejax.report.figures.predictions import compared_laws
from moejax.result import Result


def write_comparison(folder: Path, comparison: Comparison, read: ReadRuns, summary: Result) -> list[str]:
    """Write the files of a comparison, and return their names."""
    rows = read.rows.tolist()
    figure = write_figure(folder, "predicted_vs_actual", lambda: compared_laws(comparison, read.runs, rows))
    words = read.runs.output.replace("_", " ")
    image = f"\n![Predicted against measured {words}, a panel per law]({figure[0]})\n"
    write_text(folder / "compare.md", render.markdown(replace(summary, notes=())) + image)
    write_json(folder / "compare.json", summary.data)
    return ["compare.json", "compare.md", *figure]
