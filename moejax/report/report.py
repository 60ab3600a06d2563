"""``report.html``, ``report.md`` and ``report.json`` in a folder: one page, its text, and the same numbers as data; and
the figures of a study's report, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context

from moejax.fit.tables.column_names import with_derived
from moejax.folder import one_set, write_json, write_text
from moejax.json_text import finite
from moejax.report import render, sources
from moejax.report.conclusions import conclusions
from moejax.report.figures import (
    annealed_losses,
    expert_loads,
    isoflop_slice,
    loss_vs_compute,
    loss_vs_tokens,
    predicted_vs_actual,
    routing_health,
    running,
    training_curves,
)
from moejax.report.figures.figure import Figure, FigureInputs
from moejax.report.figures.scores_vs_loss import scores_vs_loss
from moejax.report.figures.style import RC, Draw
from moejax.report.findings import Findings, read, summary
from moejax.report.page import page
from moejax.study.run import Concluded


def _of_runs(draw: Callable[[FigureInputs], Figure | None], *columns: str) -> Draw:
    """Return a function that draws a figure of the run table if it has the columns."""

    def drawn(findings: Findings) -> Figure | None:
        table = with_derived(findings.runs)
        return draw(FigureInputs(table=table)) if all(column in table for column in columns) else None

    return drawn


def _restarts(findings: Findings) -> Figure | None:
    """Draw the attempts of the trainings, if any needed more than one."""
    try:
        table = sources.attempts_table(findings.concluded.folder)
    except ValueError:
        return None
    smooth = set(table["outcome"]) == {"done"} and table["model"].is_unique
    return None if smooth else running.restarts(FigureInputs(table=table))


def _annealed(findings: Findings) -> Figure | None:
    """Draw predicted and measured annealed losses, if the study requests them."""
    annealed = findings.concluded.annealed
    return annealed_losses.draw(annealed) if annealed is not None and annealed.models else None


def _scores(findings: Findings) -> Figure | None:
    """Draw errors of tasks against the loss, if the study has downstream tasks."""
    downstream = findings.concluded.downstream
    if downstream is None or "error" not in downstream.scores:
        return None
    table = downstream.scores[downstream.scores["error"].notna()]
    return scores_vs_loss(table, "Errors in tasks") if len(table) else None


FIGURES: dict[str, Draw] = {
    "loss_vs_compute": _of_runs(loss_vs_compute.runs, "loss", "flops"),
    "training_curves": training_curves.draw,
    "loss_vs_tokens": loss_vs_tokens.draw,
    "predicted_vs_actual": predicted_vs_actual.draw,
    "isoflop_slice": isoflop_slice.draw,
    "routing_health": _of_runs(routing_health.health),
    "expert_loads": expert_loads.draw,
    "restarts": _restarts,
    "annealed_losses": _annealed,
    "scores_vs_loss": _scores,
}
"""Every figure of a report by its name."""


def draw_all(findings: Findings) -> dict[str, Figure]:
    """Draw all figures that have data, by name."""
    with rc_context(RC):
        drawn = {name: draw(findings) for name, draw in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


PAGE, TEXT, DATA = "report.html", "report.md", "report.json"


def write_report(concluded: Concluded) -> Path:
    """Write the files, all of them the old ones or the new ones; returns the page's path."""
    findings = read(concluded)
    text = {TEXT: render.markdown(conclusions(findings)), PAGE: page(findings, draw_all(findings))}
    write_pages(concluded.folder, text, as_data(concluded))
    return concluded.folder / PAGE


def write_pages(folder: Path, text: Mapping[str, str], data: Any) -> None:
    """Write a report's files by name, and its data last."""
    with one_set():
        for name, content in text.items():
            write_text(folder / name, content)
        write_json(folder / DATA, data)


def as_data(concluded: Concluded) -> dict[str, Any]:
    """Return all conclusions and the sums on the page as plain data; non-finite numbers are None."""
    findings = read(concluded)
    return {"summary": summary(findings), **finite(concluded.to_json()), "next": findings.next_runs}
