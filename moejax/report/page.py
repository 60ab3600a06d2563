"""The report as one HTML page: it needs no network, follows the reader's light or dark mode, and prints."""

from __future__ import annotations

import dataclasses
import json
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from moejax.config import dump
from moejax.fit.bootstrap import Interval
from moejax.quantities import format, format_bytes
from moejax.report import svg
from moejax.report.figures.picture import Picture
from moejax.report.figures.style import COLOURS
from moejax.report.findings import Findings, best_per_budget, experts, seconds, versions
from moejax.report.wording import against_naive, confirmations, family, size

LONG = ("architecture", "config", "versions", "expert_loads")
"""Columns of the run table that are too long for a line of CSV; the table itself has them."""


def page(found: Findings, pictures: dict[str, Picture]) -> str:
    """The page's text."""
    template = _environment().get_template("page.html.j2")
    concluded = found.concluded
    return template.render(
        study=concluded.study,
        corpus=concluded.corpus,
        signals=concluded.signals,
        laws=concluded.analysed.laws,
        best_law=min(concluded.analysed.laws, key=lambda law: law.held_out.mae, default=None),
        decisions=concluded.analysed.decisions,
        limits=concluded.analysed.limits,
        runs=found.runs.to_dict("records"),
        runs_csv=found.runs.drop(columns=list(LONG), errors="ignore").to_csv(index=False),
        best=best_per_budget(found.runs).to_dict("records"),
        seconds=seconds(found.runs),
        versions=versions(found.runs),
        config=json.dumps({**concluded.study.identity(), "analysis": dump(concluded.study.analysis)}, indent=2),
        pictures=pictures,
        drawn={name: Markup(svg.inline(name, picture)) for name, picture in pictures.items()},
        colours=COLOURS,
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("moejax.report", "."),
        autoescape=True,
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
        "csv_link": lambda text: "data:text/csv;charset=utf-8," + quote(text),
        "interval": _interval,
    }
    environment.globals |= {
        "experts": experts,
        "family": family,
        "confirmations": confirmations,
        "against_naive": against_naive,
        "formula": lambda law: (type(law).__doc__ or "").partition("\n")[0],
        "meanings": lambda law: {f.name: f.metadata for f in dataclasses.fields(law)},
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


def _interval(found: Interval, digits: int = 4) -> str:
    """Ends alike in form; NaN if no resample had an answer."""
    return f"{format(found.low, digits)} – {format(found.high, digits)}"
