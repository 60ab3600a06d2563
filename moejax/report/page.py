"""Write the report of a study: one HTML page, its Markdown text, its data, and its figures by name.

The page needs no network, follows the reader's light or dark mode, and prints.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context

from moejax import table_file
from moejax.config import dump
from moejax.errors import UserError
from moejax.fit.tables.column_names import with_derived
from moejax.folder import one_set, write_json, write_text
from moejax.interval import Interval
from moejax.json_text import finite, json_text
from moejax.laws.design import FIELDS, Design
from moejax.laws.formula import formula
from moejax.quantities import format, format_bytes
from moejax.report import render, sources
from moejax.report.conclusions import (
    against_naive,
    annealed_tables,
    asks_for_laws,
    best,
    budget_of,
    coefficients,
    conclusions,
    decision_table,
    downstream_tables,
    laws_table,
    losses_by_part,
    next_table,
    preferred,
    recipe_tables,
    runs_table,
    settings_table,
    stages_table,
    worth,
)
from moejax.report.figures import compute, loss_curves, optima, predictions, running, runs
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.style import COLORS, RC, WIDTH_INCHES, Draw, dark, ramp
from moejax.report.findings import BUDGETS, Findings, read, seconds, summary, versions
from moejax.report.render import html_table
from moejax.result import MISSING, size
from moejax.run_table import DataFrame
from moejax.study.analysis import counted_runs
from moejax.study.compute_optimum import family
from moejax.study.run import Concluded
from moejax.wording import printable

ROWS = 600
"""Maximum number of rows in the page's run table; runs with the lowest losses are kept, and the CSV has all."""
TOP = ("model", "loss", "bits_per_byte", "tokens", "params_active", "params_total")
"""Fields of the best run at the top of the page."""
LONG = ("architecture", "config", "versions", "expert_loads")
"""Columns that the page's CSV omits because they are long; ``runs.parquet`` has them."""
IN_TEMPLATES = (
    *(against_naive, annealed_tables, asks_for_laws, budget_of, coefficients, decision_table, downstream_tables),
    *(family, laws_table, losses_by_part, next_table, recipe_tables, settings_table, stages_table, worth),
)
"""Functions that templates call."""


def page(findings: Findings, figures: dict[str, Figure]) -> str:
    """Return the report as HTML."""
    concluded = findings.concluded
    shown = findings.runs if len(findings.runs) <= ROWS else findings.runs.nsmallest(ROWS, "loss").sort_index()
    study = concluded.study
    config = {**study.identity(), "analysis": dump(study.analysis)} if study else None
    return page_of(
        "page.html.j2",
        name=concluded.name,
        concluded=concluded,
        analysed=concluded.analysed,
        findings=findings,
        best_law=preferred(findings),
        counted_runs=counted_runs(findings.runs),
        shown=len(shown),
        runs=runs_table("runs", shown),
        runs_csv=table_file.csv_text(findings.runs.drop(columns=list(LONG), errors="ignore"), float_format="%.8g"),
        best=best(findings, BUDGETS),
        top_title=_top_title(findings),
        top=_top(findings).reindex(columns=TOP).to_dict("records")[-1],
        seconds=seconds(findings.runs),
        versions=versions(findings.runs),
        config=json_text(config) if config else "",
        figures=figures,
    )


def _top(findings: Findings) -> DataFrame:
    """Return runs sorted so that the best is last: the winner of the last stage, or else the run with the lowest
    loss."""
    if not findings.concluded.stages:
        return findings.runs.sort_values("loss", ascending=False, na_position="first", kind="stable")
    runs = findings.runs[findings.runs["model"] == findings.concluded.stages[-1].winner]
    return runs.sort_values("tokens")


def _top_title(findings: Findings) -> str:
    """Return the title of the best run. A stage's winner is not always the best trained model."""
    if findings.concluded.stages:
        return f"Winner of the last stage, {findings.concluded.stages[-1].name}"
    return "Best model trained" if findings.concluded.study else "Best run"


def page_of(template: str, *, figures: dict[str, Figure], **values: Any) -> str:
    """Render a template of this folder with figures."""
    return (
        _environment()
        .get_template(template)
        .render(
            figures=figures,
            drawn={name: Markup(inline(name, figure)) for name, figure in figures.items()},
            colors=COLORS,
            **values,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("moejax.report", "."),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "quantity": _or_dash(format),
        "size": _or_dash(size),
        "decimals": _or_dash(lambda value, digits: f"{value:.{digits}f}"),
        "whole": _or_dash(lambda value: f"{value:,.0f}"),
        "flops": _or_dash(_power_of_ten),
        "percent": _or_dash(lambda value: f"{value:.1%}"),
        "bytes": format_bytes,
        "breakable": _breakable,
        "clock": _or_dash(_clock),
        "csv_link": lambda text: "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode()).decode(),
        "interval": _interval,
    }
    environment.globals |= {one.__name__: one for one in IN_TEMPLATES} | {
        "html_table": lambda table: Markup(html_table(table)),
        "formula": lambda law: f"{formula(type(law)).text}.",
    }
    return environment


def _or_dash(write: Callable[..., str]) -> Callable[..., str]:
    """Return a template filter that formats values with ``write``, and unknown values as dashes."""
    return lambda value, *digits: MISSING if value is None or value != value else write(value, *digits)


def _power_of_ten(value: float) -> Markup:
    digits, power = f"{value:.2e}".split("e")
    factor = "" if digits == "1.00" else f"{digits} · "
    return Markup("{}10<sup>{}</sup>").format(factor, int(power))


def _breakable(name: object) -> Markup:
    """Return a name as HTML that may break after separators such as ``-`` and ``_``."""
    parts = re.split(r"(?<=[_/,=:+])|(?<=-)(?<![0-9]e-)", printable(str(name)))
    return Markup("<wbr>").join(filter(None, parts))


def _clock(value: float) -> str:
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _interval(ends: Interval, digits: int = 4) -> str:
    return f"{format(ends.low, digits)} – {format(ends.high, digits)}"


POINTS_PER_INCH = 72
_DARK = sorted({color for count in range(2, 11) for color in ramp(count) if dark(color)})


def inline(name: str, figure: Figure) -> str:
    """Return a figure as an ``<svg>`` element with CSS variables as colors, which default to light mode."""
    text = io.StringIO()
    with rc_context(RC):
        drawing: Any = {"bbox_inches": "tight", "pad_inches": 0.02}
        figure.drawing.savefig(
            text, format="svg", **drawing, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several figures share a page, so the ids in each SVG must be unique.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--font, system-ui), 'DejaVu Sans'", svg)
    for variable, color in COLORS.items():
        svg = re.sub(color, f"var(--{variable}, {color})", svg, flags=re.IGNORECASE)
    # Colors of a ramp are lightened on dark pages.
    svg = re.sub("|".join(_DARK), r"color-mix(in oklab, \g<0>, white var(--lift, 0%))", svg, flags=re.IGNORECASE)
    # The page sets the width, with the same scale for all figures; the view box keeps the aspect ratio.
    (width,) = re.findall(r'^<svg[^>]*? width="([\d.]+)pt"', svg)
    share = min(1.0, float(width) / (POINTS_PER_INCH * WIDTH_INCHES))
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 style="--share: {share:.3f}"', svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = html.escape(f"{figure.title}. {figure.caption}", quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def _of_runs(draw: Callable[[FigureInputs], Figure | None], *columns: str) -> Draw:
    """Return a function that calls ``draw`` if the run table has the given columns, and else returns None."""

    def drawn(findings: Findings) -> Figure | None:
        table = with_derived(findings.runs)
        return draw(FigureInputs(table=table)) if all(column in table for column in columns) else None

    return drawn


def _loss_vs_compute(findings: Findings) -> Figure | None:
    """Draw loss against compute with the preferred law, its interval and the decisions' budget, if any."""
    law = preferred(findings)
    if law is not None:
        table = with_derived(findings.runs).iloc[law.rows]
        sizes = {name: column(table, name) for name in FIELDS if name in table and table[name].notna().all()}
        decisions = findings.concluded.analysed.decisions
        target = next((one.flops for one in decisions if one.law == law.name), None)
        try:
            drawn = compute.compute_table(law.fit, Design(**sizes), column(table, "loss"), flops=target)
        except UserError:
            return _of_runs(runs.loss_vs_compute, "loss", "flops")(findings)
        return compute.loss_vs_compute(FigureInputs(table=drawn))
    return _of_runs(runs.loss_vs_compute, "loss", "flops")(findings)


def _restarts(findings: Findings) -> Figure | None:
    """Draw the attempts of the training runs, if any run needed more than one."""
    try:
        table = sources.attempts_table(findings.concluded.folder)
    except ValueError:
        return None
    smooth = set(table["outcome"]) == {"done"} and table["model"].is_unique
    return None if smooth else running.restarts(FigureInputs(table=table))


def _annealed(findings: Findings) -> Figure | None:
    """Draw predicted and measured annealed losses if the study requests them."""
    annealed = findings.concluded.annealed
    return loss_curves.annealed_losses(annealed) if annealed is not None and annealed.models else None


def _scores(findings: Findings) -> Figure | None:
    """Draw task errors against the loss if the study has downstream tasks."""
    downstream = findings.concluded.downstream
    if downstream is None or "error" not in downstream.scores:
        return None
    table = downstream.scores[downstream.scores["error"].notna()]
    return runs.scores_vs_loss(table, "Errors in tasks") if len(table) else None


FIGURES: dict[str, Draw] = {
    "loss_vs_compute": _loss_vs_compute,
    "training_curves": loss_curves.training_curves,
    "loss_vs_tokens": runs.loss_vs_tokens,
    "predicted_vs_actual": predictions.predicted_vs_actual,
    "isoflop_slice": optima.isoflop_slice,
    "routing_health": _of_runs(running.routing_health),
    "expert_loads": running.expert_loads,
    "restarts": _restarts,
    "annealed_losses": _annealed,
    "scores_vs_loss": _scores,
}
"""Functions that draw the figures of a report, keyed by figure name."""


def draw_all(findings: Findings) -> dict[str, Figure]:
    """Draw all figures that have data; return them keyed by name."""
    with rc_context(RC):
        drawn = {name: draw(findings) for name, draw in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


PAGE, TEXT, DATA = "report.html", "report.md", "report.json"
COMPUTE = "loss-vs-compute.pdf"
"""File name of the loss-compute figure for a paper."""


def write_report(concluded: Concluded) -> Path:
    """Write a report's files, all of them or none, and return the page's path."""
    findings = read(concluded)
    figures = draw_all(findings)
    text = {TEXT: render.markdown(conclusions(findings)), PAGE: page(findings, figures)}
    write_pages(concluded.folder, text, as_data(concluded), figures.get("loss_vs_compute"))
    return concluded.folder / PAGE


def write_pages(folder: Path, text: Mapping[str, str], data: Any, loss_vs_compute: Figure | None = None) -> None:
    """Write the texts of a report, keyed by file name, its loss-compute figure as PDF, and its data last."""
    with one_set():
        if loss_vs_compute is not None:
            loss_vs_compute.save(folder / COMPUTE)
        for name, content in text.items():
            write_text(folder / name, content)
        write_json(folder / DATA, data)


def as_data(concluded: Concluded) -> dict[str, Any]:
    """Return all conclusions and the page's totals as plain data, keyed by name; non-finite numbers are None."""
    findings = read(concluded)
    return {"summary": summary(findings), **finite(concluded.to_json()), "next": findings.next_runs}
