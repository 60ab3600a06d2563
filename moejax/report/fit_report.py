"""Write the report of a fit: coefficients, diagnostics, and figures of its law."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from moejax import run_table
from moejax.errors import UserError
from moejax.fit import summary as fit_summary
from moejax.fit.answers import Answers, ReadAs
from moejax.fit.fit_result import FitResult, are_runs_of, load_of_runs, read_by_this_version, read_plain
from moejax.fit.runs import Runs
from moejax.fit.selection.metrics import rmse_named, unit_of_errors
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.json_text import fields
from moejax.laws.predict import published
from moejax.report import render
from moejax.report.figures import evidence
from moejax.report.figures.compute import compute_table
from moejax.report.figures.figure import Figure
from moejax.report.figures.isoflop import isoflop_table, leverage_table
from moejax.report.page import PAGE, TEXT, page_of, write_pages
from moejax.report.plots import PLOTS, Plot, draw, inputs_of
from moejax.result import Result
from moejax.say import ProgressCallback

FIGURES = 6
"""Maximum number of the law's named figures."""


@dataclass(frozen=True, kw_only=True)
class ReportedFit:
    """A fit with its answers and runs, for a report."""

    fit: FitResult
    name: str
    """Heading of the report."""
    file: str = ""
    """Name of the fit's file; empty if the fit is not stored."""
    answers: Answers = field(default_factory=Answers)
    read: ReadRuns | None = None
    """The fitted runs; None if they are unknown, which omits the diagnostics."""

    @classmethod
    def load(cls, source: Path) -> ReportedFit:
        """Load a fit with its answers, and its runs from the ``predictions.csv`` next to it.

        Raises:
          UserError: the file is no fit of runs.
        """
        fit, answers = load_of_runs(source), _answers(source)
        name = source.stem if source.stem != "fit" else source.resolve().parent.name
        return cls(fit=fit, name=name, file=source.name, answers=answers, read=_runs(fit, source, answers.read))


def write_fit_report(
    reported: ReportedFit,
    folder: Path,
    plots: Mapping[str, Plot] = PLOTS,
    update: ProgressCallback = lambda share, text: None,
) -> Path:
    """Write the page, text and data of a fit, with the figures among ``plots`` that draw its law; return the page's
    path.
    """
    said = summary(reported)
    drawn = _figures(reported, plots, update)
    text = {TEXT: render.markdown(said), PAGE: _page(reported, said, drawn)}
    write_pages(folder, text, said.data, drawn.get("loss-vs-compute"))
    return folder / PAGE


def _figures(reported: ReportedFit, plots: Mapping[str, Plot], update: ProgressCallback) -> dict[str, Figure]:
    """Draw predictions for the fitted runs, diagnostics, and the law's figures with the fitted coefficients, keyed by
    name."""
    fit, answers, read = reported.fit, reported.answers, reported.read
    tables = {} if read is None else _of_loss(fit, read.runs, answers) | _evidence(fit, read, update)
    if answers.held_out_runs is not None:
        tables["held-out-ranges"] = answers.held_out_runs.table
    figures = {name: draw(PLOTS[name], inputs_of(PLOTS[name], table=table)) for name, table in tables.items()}
    drawn = [plot for plot in plots.values() if plot.law and type(published(plot.law).law) is type(fit.law)]
    for plot in [plot for plot in drawn if not plot.needs_table][:FIGURES]:
        inputs = inputs_of(plot, law=fit.law, law_name=f"the fit in {reported.file}" if reported.file else "the fit")
        figure = draw(plot, inputs)
        # The caption of a paper's figure refers to the paper's coefficients, so it is replaced.
        title = figure.title if plot.source == Plot.source else f"{figure.title}, after {plot.source}"
        figures[plot.name] = replace(figure, title=title)
    return figures


def _of_loss(fit: FitResult, runs: Runs, answers: Answers) -> dict[str, pd.DataFrame]:
    """Return the tables of figures of a loss law, keyed by figure name, up to the largest budget of the decisions. A
    figure that the law or the runs do not allow is left out.
    """
    flops = max((one.given["flops"] for one in answers.decisions if "flops" in one.given), default=None)
    level, tables = _level(answers), {}
    every: dict[str, Callable[[], pd.DataFrame]] = {
        "loss-vs-compute": lambda: compute_table(fit, runs.design, runs.loss, flops=flops, level=level),
        "isoflop": lambda: isoflop_table(fit, runs, flops=flops),
        "leverage": lambda: leverage_table(fit, runs, flops=flops, level=level),
    }
    for name, table in every.items():
        with contextlib.suppress(UserError):
            tables[name] = table()
    return tables


def fitted_runs(fit: FitResult, source: Path) -> ReadRuns | None:
    """Return the fitted runs from the ``predictions.csv`` next to the fit; None if this file is missing or has other
    runs."""
    return _runs(fit, source, _answers(source).read)


def _runs(fit: FitResult, source: Path, columns: ReadAs | None) -> ReadRuns | None:
    """Read the fitted runs from the ``predictions.csv`` next to the fit. Return None if this file is missing or has
    other runs."""
    path = source.parent / "predictions.csv"
    if columns is None or not path.exists():
        return None
    try:
        table = run_table.read_as_it_is(path)
        read = read_runs(table, type(fit.law).inputs, trust_units=True, **fields(columns))
    except ValueError:
        return None
    return read if are_runs_of(fit, read.runs) else None


def _evidence(fit: FitResult, read: ReadRuns, update: ProgressCallback) -> dict[str, pd.DataFrame]:
    """Return the tables of the diagnostic figures, keyed by figure name."""
    update(0.1, "profiles")
    estimands = evidence.coefficients(fit)
    tables = {
        "fit": evidence.fit_table(fit, read.runs),
        "profile": evidence.profile_table(fit, read.runs, estimands),
    }
    update(0.6, "influence of runs")
    if estimands:
        tables["influence"] = evidence.influence_table(fit, read)
    update(0.7, "agreement of initial guesses")
    tables["starts"] = evidence.starts_table(fit, read.runs)
    return {name: table for name, table in tables.items() if len(table)}


def _page(reported: ReportedFit, said: Result, figures: dict[str, Figure]) -> str:
    fit, answers = reported.fit, reported.answers
    first = answers.held_out[0].errors if answers.held_out else None
    return page_of(
        "fit.html.j2",
        name=reported.name,
        fit=fit,
        decided=[one for one in answers.decisions if one.given],
        held_out=answers.held_out_together or first,
        rmse=rmse_named(fit.output),
        unit=unit_of_errors(fit.output),
        splits=[split.name for split in answers.held_out],
        said=said,
        figures=figures,
    )


def summary(reported: ReportedFit) -> Result:
    """Return the summary of ``moejax fit``, including warnings about held-out runs."""
    said = fit_summary.summary(reported.fit, _level(reported.answers), reported.answers)
    return replace(said, data={"source": reported.file, **said.data, "warnings": list(said.warnings)})


def _level(answers: Answers) -> float:
    return 0.9 if answers.standard_errors is None else answers.standard_errors.level


def _answers(source: Path) -> Answers:
    with read_by_this_version(source):
        return Answers.from_json(read_plain(source))
