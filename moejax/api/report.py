"""Write the HTML report of runs, a fit or a study, like ``moejax report``.

``moejax.report(…)`` calls ``report`` in this module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moejax.api.checked import checked
from moejax.api.read_table import RunTable, read_of, read_table
from moejax.errors import UserError
from moejax.fit.answers import Answers
from moejax.fit.fit_result import FitResult, check_runs_of
from moejax.fit.summary import with_held_out
from moejax.folder import fit_in, outputs_of
from moejax.laws import law_name
from moejax.papers.plots import ALL
from moejax.papers.recipes import STUDY_RECIPES
from moejax.ranges import Quantity, Resamples
from moejax.report import fit_report
from moejax.report.conclusions import brief
from moejax.report.findings import read as findings_of
from moejax.report.page import write_report
from moejax.result import Result, Shown
from moejax.run_table import ENDINGS
from moejax.study.run import Concluded, conclude, conclude_runs


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Shown):
    """A written report: its page and its conclusions."""

    path: Path
    """The HTML page; the other files are next to it."""
    conclusions: Result

    def summary(self) -> Result:
        """Return the conclusions."""
        return self.conclusions


@checked
def report(
    source: RunTable | FitResult,
    out: str | Path | None = None,
    *,
    laws: str | Sequence[str] = (),
    flops: Quantity | None = None,
    resamples: Resamples | None = None,
    runs: RunTable | None = None,
    decisions: Answers | None = None,
    **reading: Any,
) -> Report:
    """Write the HTML report of a table of runs, a fit or a trained study, with Markdown, JSON and a figure as PDF.

    Args:
      source: the result of ``moejax.read_runs``, or a file or DataFrame to read; a fit, its file or its folder; or the
        folder of a study.
      out: output folder. The default is NAME-report next to a file, and ``report`` for an object. The report of a study
        is always in the study's folder.
      laws: for a table, the laws to fit; by default the most common ones that the columns allow.
      flops: for a table, the budget of the decisions; by default ten times the largest run's FLOPs.
      resamples: for a table, the number of bootstrap resamples; by default 300.
      runs: for a ``FitResult``, the fitted runs, from which the diagnostics are computed.
      decisions: for a ``FitResult``, the result of ``moejax.decide``.
      reading: for a file or DataFrame, options of ``moejax.read_runs``.

    Returns:
      The conclusions; ``path`` is the page.

    Raises:
      UserError: the source cannot be read, an argument does not apply to it, or a file that moejax did not write would
        be replaced.

    Example:
      >>> mj.report("runs.csv", flops=1e24).path
      >>> mj.report(fit, "fit-report", runs=runs, decisions=mj.decide(fit, flops=1e24))
    """
    of_table = {"laws": laws or None, "flops": flops, "resamples": resamples}
    asked = {name: value for name, value in of_table.items() if value is not None}
    of_fit = [name for name, value in (("runs", runs), ("decisions", decisions)) if value is not None]
    path = fit_in(Path(source)) if isinstance(source, str | Path) else None
    folder = Path(out) if out else _usual_folder(path)
    if isinstance(source, FitResult):
        _refuse("a fit", [*asked, *reading])
        return _of_fit(_reported(source, runs, decisions), folder)
    if path is not None and path.suffix == ".json":
        _refuse("the file of a fit", [*asked, *reading, *of_fit])
        return _of_fit(fit_report.ReportedFit.load(path), folder)
    if path is not None and not path.name.endswith(ENDINGS):
        _refuse("a study", [*asked, *reading, *of_fit, *(["out"] if out else [])])
        return _of_conclusions(conclude(path, _silent, STUDY_RECIPES))
    _refuse("a table", of_fit)
    read = read_table(source, (), reading)
    if laws:
        asked["laws"] = [law_name(one) for one in ([laws] if isinstance(laws, str) else laws)]
    with _outputs(folder):
        return _of_conclusions(conclude_runs(read, path.name if path else "runs", folder, _silent, **asked))


def _usual_folder(path: Path | None) -> Path:
    return Path("report") if path is None else path.parent / f"{path.name.split('.')[0]}-report"


def _refuse(kind: str, given: Sequence[str]) -> None:
    if given:
        raise UserError(f"The report of {kind} does not use {given[0]}; leave it out.")


@contextlib.contextmanager
def _outputs(folder: Path) -> Iterator[None]:
    with outputs_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def _reported(fit: FitResult, runs: RunTable | None, decisions: Answers | None) -> fit_report.ReportedFit:
    read = None if runs is None else read_of(fit, runs)
    if read is not None:
        check_runs_of(fit, read.runs)
    return fit_report.ReportedFit(
        fit=fit, name=type(fit.law).__name__, answers=with_held_out(fit, decisions), read=read
    )


def _of_fit(reported: fit_report.ReportedFit, folder: Path) -> Report:
    with _outputs(folder):
        path = fit_report.write_fit_report(reported, folder, ALL)
    return Report(path=path, conclusions=fit_report.summary(reported))


def _of_conclusions(concluded: Concluded) -> Report:
    return Report(path=write_report(concluded), conclusions=brief(findings_of(concluded)))


def _silent(share: float, text: str) -> None:
    """Show no progress."""
