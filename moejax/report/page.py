"""The report as one HTML page: it needs no network, follows the reader's light or dark mode, and prints."""

from __future__ import annotations

import base64
import html
import io
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context

from moejax import table_file
from moejax.config import dump
from moejax.interval import Interval
from moejax.json_text import json_text
from moejax.laws.formula import formula
from moejax.quantities import format, format_bytes
from moejax.report.conclusions import (
    against_naive,
    annealed_tables,
    asks_for_laws,
    best,
    budget_of,
    coefficients,
    decision_table,
    downstream_tables,
    laws_table,
    losses_by_part,
    next_table,
    recipe_tables,
    runs_table,
    stages_table,
    worth,
)
from moejax.report.figures.figure import Figure
from moejax.report.figures.style import COLOURS, RC, WIDTH_INCHES, dark, ramp
from moejax.report.findings import BUDGETS, Findings, experts, seconds, versions
from moejax.report.render import html_table
from moejax.result import size
from moejax.run_table import DataFrame
from moejax.study.compute_optimum import family
from moejax.wording import printable

ROWS = 600
"""Runs that are rows of the page's table, those of least loss; the CSV has all."""
TOP = ("model", "loss", "bits_per_byte", "tokens", "params_active", "params_total")
"""Fields of the best run that the page states."""
LONG = ("architecture", "config", "versions", "expert_loads")
"""Columns of the run table that are too long for a line of CSV; the table itself has them."""


def page(findings: Findings, figures: dict[str, Figure]) -> str:
    """Return the page."""
    concluded = findings.concluded
    shown = findings.runs if len(findings.runs) <= ROWS else findings.runs.nsmallest(ROWS, "loss").sort_index()
    study, selection = concluded.study, concluded.analysed.selection
    config = {**study.identity(), "analysis": dump(study.analysis)} if study else None
    return page_of(
        "page.html.j2",
        name=concluded.name,
        study=study,
        notes=concluded.notes,
        corpus=concluded.corpus,
        sanity_checks=concluded.sanity_checks,
        laws=concluded.analysed.laws,
        selection=selection,
        best_law=next((law for law in concluded.analysed.laws if selection and law.name == selection.preferred), None),
        decisions=concluded.analysed.decisions,
        limits=concluded.analysed.limits,
        count=len(findings.runs),
        models=int(findings.runs["model"].nunique()),
        shown=len(shown),
        runs=runs_table("runs", shown),
        runs_csv=table_file.csv_text(findings.runs.drop(columns=list(LONG), errors="ignore"), float_format="%.8g"),
        best=best(findings, BUDGETS),
        budget=budget_of(findings),
        losses_by_part=losses_by_part(findings),
        asks_for_laws=asks_for_laws(findings),
        top_title=_top_title(findings),
        top=_top(findings).reindex(columns=TOP).to_dict("records")[-1],
        stages_table=stages_table(findings),
        law_table=laws_table(findings),
        annealed_tables=annealed_tables(findings),
        recipe_tables=recipe_tables(findings),
        downstream_tables=downstream_tables(findings),
        next=findings.next_runs,
        next_table=next_table(findings),
        seconds=seconds(findings.runs),
        versions=versions(findings.runs),
        config=json_text(config) if config else "",
        figures=figures,
    )


def _top(findings: Findings) -> DataFrame:
    """Return runs with the best one last: the winner of the last stage, or else the one with the lowest loss."""
    if not findings.concluded.stages:
        return findings.runs.sort_values("loss", ascending=False, na_position="first", kind="stable")
    runs = findings.runs[findings.runs["model"] == findings.concluded.stages[-1].winner]
    return runs.sort_values("tokens")


def _top_title(findings: Findings) -> str:
    """Return the title of ``_top``. The winner of a stage is not always the best model that was trained."""
    if findings.concluded.stages:
        return f"Winner of the last stage, {findings.concluded.stages[-1].name}"
    return "Best model trained" if findings.concluded.study else "Best run"


def page_of(template: str, *, figures: dict[str, Figure], **values: Any) -> str:
    """Render a template of this folder with its figures."""
    return (
        _environment()
        .get_template(template)
        .render(
            figures=figures,
            drawn={name: Markup(inline(name, figure)) for name, figure in figures.items()},
            colours=COLOURS,
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
        "quantity": lambda value, digits=4: _or_dash(value, lambda v: format(v, digits)),
        "size": lambda value, digits=4: _or_dash(value, lambda v: size(v, digits)),
        "decimals": lambda value, digits: _or_dash(value, lambda v: f"{v:.{digits}f}"),
        "whole": lambda value: _or_dash(value, lambda v: f"{v:,.0f}"),
        "flops": lambda value: _or_dash(value, _power_of_ten),
        "percent": lambda value: _or_dash(value, lambda v: f"{v:.1%}"),
        "bytes": format_bytes,
        "clock": _clock,
        "csv_link": lambda text: "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode()).decode(),
        "interval": _interval,
    }
    environment.globals |= {
        "experts": experts,
        "html_table": lambda table: Markup(html_table(table)),
        "family": family,
        "coefficients": coefficients,
        "decision_table": decision_table,
        "against_naive": against_naive,
        "worth": worth,
        "formula": lambda law: f"{formula(type(law)).text}.",
    }
    return environment


def _or_dash(value: Any, write: Any) -> str:
    return "–" if value is None or value != value else write(value)


def _power_of_ten(value: float) -> Markup:
    digits, power = f"{value:.2e}".split("e")
    factor = "" if digits == "1.00" else f"{digits} · "
    return Markup("{}10<sup>{}</sup>").format(factor, int(power))


def _clock(value: float) -> str:
    if value != value:
        return "–"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def _interval(ends: Interval, digits: int = 4) -> str:
    """Return both ends in the same format; NaN if no resample has an answer."""
    return f"{format(ends.low, digits)} – {format(ends.high, digits)}"


POINTS_PER_INCH = 72
_DARK = sorted({colour for count in range(2, 11) for colour in ramp(count) if dark(colour)})


def inline(name: str, figure: Figure) -> str:
    """Return a figure as an ``<svg>`` element. Its colours are CSS variables, which default to light mode."""
    text = io.StringIO()
    with rc_context(RC):
        drawing: Any = {"bbox_inches": "tight", "pad_inches": 0.02}
        figure.drawing.savefig(
            text, format="svg", **drawing, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Several figures share a page: what matplotlib names must not meet its namesake.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
    svg = re.sub(r"'DejaVu Sans'", "var(--font, system-ui), 'DejaVu Sans'", svg)
    for variable, colour in COLOURS.items():
        svg = re.sub(colour, f"var(--{variable}, {colour})", svg, flags=re.IGNORECASE)
    # Colours of a ramp are lighter on the dark side of a page.
    svg = re.sub("|".join(_DARK), r"color-mix(in oklab, \g<0>, white var(--lift, 0%))", svg, flags=re.IGNORECASE)
    # The page sets the width, alike in scale for narrow figures and wide ones; the view box keeps the shape.
    (width,) = re.findall(r'^<svg[^>]*? width="([\d.]+)pt"', svg)
    share = min(1.0, float(width) / (POINTS_PER_INCH * WIDTH_INCHES))
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', rf'\1 style="--share: {share:.3f}"', svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    label = html.escape(f"{figure.title}. {figure.caption}", quote=True)
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
