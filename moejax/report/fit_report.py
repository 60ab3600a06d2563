"""The report of one fit: its coefficients, what they rest on, and the figures of its law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from moejax import run_table
from moejax.config import convert
from moejax.fit import summary as fit_summary
from moejax.fit.fit_result import FitResult, are_runs_of, read_by_this_version, read_plain
from moejax.fit.selection import held_out_runs
from moejax.fit.selection.metrics import rmse_named, unit_of_errors
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.laws.predict import published
from moejax.report import evidence, render
from moejax.report.figures.figure import Figure
from moejax.report.page import page_of
from moejax.report.plots import PLOTS, PREDICTIONS, Plot, draw, inputs_of
from moejax.report.report import PAGE, TEXT, write_pages
from moejax.result import Result
from moejax.say import ProgressCallback

FIGURES = 6
"""The most of the law's named figures that are drawn."""


def write_fit_report(
    fit: FitResult,
    source: Path,
    folder: Path,
    plots: Mapping[str, Plot] = PLOTS,
    update: ProgressCallback = lambda share, text: None,
) -> Path:
    """Write page, text and data, with those of ``plots`` that draw the fit's law; returns the page's path."""
    drawn = _figures(fit, source, plots, update)
    with read_by_this_version(source):
        said = summary(fit, source)
        text = {TEXT: render.markdown(said), PAGE: _page(fit, source, said, drawn)}
    write_pages(folder, text, said.data)
    return folder / PAGE


ANSWERS = (
    *("standard_errors", "bootstrap", "held_out", "held_out_together", "held_out_runs", "decisions", "predictions"),
    *("profiles", "influence", "beyond", "notes"),
)
"""Keys that ``moejax fit`` adds to a fit's file on request."""


def _beside(source: Path) -> dict[str, Any]:
    """Return the standard errors, held-out errors and estimands in the same file."""
    plain = read_plain(source)
    return {name: plain[name] for name in ANSWERS if name in plain}


def _held_out(beside: dict[str, Any]) -> dict[str, Any] | None:
    """Return the errors on all held-out runs."""
    splits = beside.get("held_out")
    return beside.get("held_out_together", splits[0]["errors"]) if splits else None


def _figures(fit: FitResult, source: Path, plots: Mapping[str, Plot], update: ProgressCallback) -> dict[str, Figure]:
    """Draw predictions for the fitted runs, diagnostics, and the law's figures with the fitted coefficients."""
    read = _runs(fit, source)
    tables = _evidence(fit, read, update) if read is not None else {}
    if tested := read_plain(source).get("held_out_runs"):
        with read_by_this_version(source):
            tables["held-out-ranges"] = held_out_runs.from_json(tested)
    own = {PREDICTIONS.name: PREDICTIONS, **PLOTS}
    figures = {name: draw(own[name], inputs_of(own[name], table=table)) for name, table in tables.items()}
    drawn = [plot for plot in plots.values() if plot.law and type(published(plot.law).law) is type(fit.law)]
    for plot in [plot for plot in drawn if not plot.needs_table][:FIGURES]:
        inputs = inputs_of(plot, law=fit.law, law_name=f"the fit in {source.name}")
        figure = draw(plot, inputs)
        # A document's figure drawn with these coefficients speaks of that document.
        title = figure.title if plot.source == Plot.source else f"{figure.title}, after {plot.source}"
        figures[plot.name] = replace(figure, title=title)
    return figures


_READ = {"loss": str, "group": str | None, "weight": str | None}


def _runs(fit: FitResult, source: Path) -> ReadRuns | None:
    """Read the fitted runs from the adjacent ``predictions.csv``. Return None if it is missing or has other runs."""
    path = source.parent / "predictions.csv"
    how = read_plain(source).get("read")
    if how is None or not path.exists():
        return None
    try:
        given = convert(_READ, how, "read")
        how = {name: given[name] for name in _READ}
        read = read_runs(run_table.read_as_it_is(path), type(fit.law).inputs, trust_units=True, **how)
    except ValueError:
        return None
    return read if are_runs_of(fit, read.runs) else None


def _evidence(fit: FitResult, read: ReadRuns, update: ProgressCallback) -> dict[str, pd.DataFrame]:
    """Return the tables of the diagnostics by figure."""
    update(0.1, "profiles")
    estimands = evidence.coefficients(fit)
    tables = {
        PREDICTIONS.name: pd.DataFrame(
            {
                "law": "the fit",
                "role": "fitted",
                "output": fit.output,
                "measured": read.runs.loss,
                "predicted": read.frame["predicted"],
            }
        ),
        "profile": evidence.profile_table(fit, read.runs, estimands),
    }
    update(0.6, "influence of runs")
    if estimands:
        last = next(reversed(estimands))
        tables["influence"] = evidence.influence_table(fit, read.runs, last, estimands[last], evidence.labels(read))
    update(0.7, "agreement of starts")
    tables["starts"] = evidence.starts_table(fit, read.runs)
    return {name: table for name, table in tables.items() if len(table)}


def _page(fit: FitResult, source: Path, said: Result, figures: dict[str, Figure]) -> str:
    beside = _beside(source)
    return page_of(
        "fit.html.j2",
        name=source.stem if source.stem != "fit" else source.resolve().parent.name,
        fit=fit,
        held_out=_held_out(beside),
        rmse=rmse_named(fit.output),
        unit=unit_of_errors(fit.output),
        splits=[split["name"] for split in beside.get("held_out", [])],
        said=said,
        figures=figures,
    )


def summary(fit: FitResult, source: Path) -> Result:
    """Return the summary of ``moejax fit``; warnings about held-out runs are among its data."""
    beside = _beside(source)
    said = fit_summary.summary(fit, (beside.get("standard_errors") or {}).get("level", 0.9), **beside)
    return replace(said, data={"source": source.name, **said.data, "warnings": list(said.warnings)})
