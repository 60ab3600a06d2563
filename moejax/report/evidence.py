"""Diagnostics of a fit, as tables for the figures of ``moejax.report.figures.evidence``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import ends
from moejax.fit.selection.metrics import predict
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.derivatives import Functional, influence
from moejax.fit.uncertainty.estimands import CoefficientOf
from moejax.fit.uncertainty.profile import curve
from moejax.laws.design import value_of


def coefficients(result: FitResult) -> dict[str, Functional]:
    """Return the fitted coefficients that the data determine, as functions of the law."""
    return {name: CoefficientOf(name) for name in result.coefficients if not result.state(name)}


def labels(read: ReadRuns) -> list[str]:
    """Return the names of runs: their models, or their rows."""
    names = read.frame["model"] if "model" in read.frame else [f"row {row}" for row in read.rows]
    return [str(name) for name in names]


def profile_table(result: FitResult, runs: Runs, estimands: Mapping[str, Functional] | None = None) -> pd.DataFrame:
    """Return profiles of several estimands, by default of every coefficient. Estimands without effect on any run are
    left out.
    """
    parts = []
    for name, functional in (estimands or coefficients(result)).items():
        try:
            profile = curve(result, runs, functional)
        except ValueError:
            continue
        parts.append(
            pd.DataFrame({"estimand": name, "value": profile.values, "rise": profile.rises, "limit": profile.limit})
        )
    return pd.concat(parts) if parts else pd.DataFrame({"estimand": [], "value": [], "rise": [], "limit": []})


def influence_table(
    result: FitResult, runs: Runs, name: str, functional: Functional, labels: list[str]
) -> pd.DataFrame:
    """Return the change of one number without each run, to first order."""
    (change,) = influence(result, runs, functional)
    return pd.DataFrame(
        {
            "run": labels,
            "estimand": name,
            "estimate": change.value,
            "if_removed": np.asarray(change.if_removed, np.float64),
        }
    )


def starts_table(result: FitResult, runs: Runs) -> pd.DataFrame:
    """Return the end points of the fit's search."""
    return pd.DataFrame({"objective": ends(result, runs)})


def fit_table(result: FitResult, runs: Runs) -> pd.DataFrame:
    """Return every fitted run with its measurement, its prediction and the inputs of the law."""
    kept = runs.where(runs.weight > 0)
    inputs = {name: value_of(kept.design, name) for name in type(result.law).inputs}
    return pd.DataFrame(
        {
            "law": type(result.law).__name__,
            "output": result.output,
            "measured": kept.loss,
            "predicted": predict(result.law, kept, result.output),
            **inputs,
        }
    )
