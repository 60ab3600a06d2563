"""The report of one fit: its coefficients, what they rest on, and the figures of its law."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd

from moejax.fit.fit_result import FitResult
from moejax.folder import whole, write_json
from moejax.laws.door import published
from moejax.quantities import format
from moejax.report import plots
from moejax.report.figures.picture import Picture
from moejax.report.markdown import table
from moejax.report.page import render
from moejax.report.report import DATA, PAGE, TEXT

FIGURES = 6
"""Of the law's named figures, at most."""


def write_fit_report(fit: FitResult, source: Path, folder: Path) -> Path:
    """Write page, text and data; returns the page's path."""
    write_json(folder / DATA, as_data(fit, source))
    text = {TEXT: _markdown(fit, source), PAGE: _page(fit, source)}
    for name, content in text.items():
        with whole(folder / name) as partial:
            partial.write_text(content, encoding="utf-8")
    return folder / PAGE


def as_data(fit: FitResult, source: Path) -> dict[str, Any]:
    """The fit, and what ``moejax fit`` wrote with it."""
    return {"source": source.name, **fit.to_json(), **_beside(source)}


def _beside(source: Path) -> dict[str, Any]:
    """Standard errors, held-out errors and answers that lie in the same file."""
    found = json.loads(source.read_text())
    return {name: found[name] for name in ("standard_errors", "bootstrap", "held_out", "notes") if name in found}


def _pictures(fit: FitResult, source: Path) -> dict[str, Picture]:
    """Predicted against measured, if predictions lie beside the fit, and the law's figures with its coefficients."""
    found = {}
    predictions = source.parent / "predictions.csv"
    if predictions.exists():
        frame = _predictions(predictions)
        if frame is not None:
            found["predicted"] = plots.draw("zhao-5", plots.subject_of("zhao-5", table=frame))
    drawn = [n for n, p in plots.PLOTS.items() if p.law and type(published(p.law).law) is type(fit.law)]
    for name in [n for n in drawn if not plots.PLOTS[n].needs_table][:FIGURES]:
        subject = plots.subject_of(name, law=fit.law, law_name=f"the fit in {source.name}")
        found[name] = plots.draw(name, subject)
    return found


def _predictions(path: Path) -> pd.DataFrame | None:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    names = {"measured": ("loss", "measured"), "predicted": ("predicted", "prediction")}
    keys = {ours: next((key for key in theirs if rows and key in rows[0]), None) for ours, theirs in names.items()}
    if None in keys.values():
        return None
    return pd.DataFrame(
        {
            "law": "the fit",
            "role": "fitted",
            "measured_nats_per_token": [float(row[str(keys["measured"])]) for row in rows],
            "predicted_nats_per_token": [float(row[str(keys["predicted"])]) for row in rows],
        }
    )


def _page(fit: FitResult, source: Path) -> str:
    beside = _beside(source)
    return render(
        "fit.html.j2",
        name=source.stem if source.stem != "fit" else source.resolve().parent.name,
        fit=fit,
        errors=(beside.get("standard_errors") or {}).get("values", {}),
        intervals=(beside.get("bootstrap") or {}).get("coefficients", {}),
        pictures=_pictures(fit, source),
    )


def _markdown(fit: FitResult, source: Path) -> str:
    errors = (_beside(source).get("standard_errors") or {}).get("values", {})
    rows = [[name, format(value), _error(errors.get(name))] for name, value in fit.coefficients.items()]
    parts = [
        f"# {type(fit.law).__name__}, fitted to {fit.metrics.runs} runs",
        table(["coefficient", "fitted", "standard error"], rows),
        f"RMSE {fit.metrics.rmse:.5f} nats/token, R² {fit.metrics.r_squared:.5f}, {fit.agreeing:.0%} of {fit.polished} "
        f"starts agree, condition number {fit.condition_number:.3g}.",
        *(f"- {warning}" for warning in fit.warnings),
        f"Data {fit.data_hash}, seed {fit.seed}; " + ", ".join(f"{k} {v}" for k, v in fit.versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _error(value: float | None) -> str:
    return "–" if value is None else format(value, 3)
