"""Answer questions about a fitted law: decisions, predictions, profiles, and influential runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty import estimates
from moejax.fit.uncertainty.bootstrap import RESAMPLED, Bootstrap
from moejax.fit.uncertainty.covariance import COVARIANCES
from moejax.fit.uncertainty.estimands import (
    Estimand,
    coefficient_estimands,
    decision_estimands,
    find,
    prediction_estimand,
)
from moejax.fit.uncertainty.influence import deciding
from moejax.fit.uncertainty.prediction import predict_run
from moejax.fit.uncertainty.profile import profile
from moejax.json_text import finite
from moejax.laws.design import value_of
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import without_effect
from moejax.quantities import format
from moejax.wording import told


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Questions about a fitted law, with the kinds of its standard errors and resamples."""

    decide: Sequence[Mapping[str, float]] = ()
    """Given values of each decision."""
    predict: Sequence[Mapping[str, float]] = ()
    """Designs of runs to predict."""
    profile: Sequence[str] = ()
    influence: Sequence[str] = ()
    covariance: str = "sandwich"
    by: str = "group"


@dataclass(frozen=True)
class Asked:
    """Estimands of the questions, validated before the fit."""

    decisions: Sequence[Estimand]
    predictions: Sequence[Estimand]
    profiles: Sequence[Estimand]
    influences: Sequence[Estimand]
    covariance: str


def asked_of(law: type, output: str, fixed: Sequence[str], questions: Questions) -> Asked:
    """Return the estimands that questions name, for a fit of one of the law's outputs.

    Raises:
      UserError: a name is unknown, or the given values decide nothing; the message lists values that would.
    """
    if questions.by not in RESAMPLED:
        raise UserError(f"--by {questions.by} is not known; choose {' or '.join(RESAMPLED)}.")
    covariance = questions.covariance.replace("-", "_")
    if covariance not in COVARIANCES:
        raise UserError(f"--covariance {questions.covariance} is not known; choose {' or '.join(COVARIANCES)}.")
    decisions = decision_estimands(law)
    for given in questions.decide:
        decisions += decision_estimands(law, _given(given, law))
    # Several options may request the same estimand if it needs fewer values than given.
    decisions = list({one.title: one for one in decisions}.values())
    predictions = [prediction_estimand(law, _given(given, law), output) for given in questions.predict]
    held = (*fixed, *without_effect(law, output))
    if wrong := [name for name in (*questions.profile, *questions.influence) if name in held]:
        why = "is given" if wrong[0] in fixed else f"does not move the {output}, which is fitted"
        raise UserError(f"{wrong[0]} {why}, so the runs do not determine it.")
    known = [*coefficient_estimands(law, held), *decisions, *predictions]
    profiles, influences = (
        [one for name in names for one in find(name, known, law)] for names in (questions.profile, questions.influence)
    )
    return Asked(decisions, predictions, profiles, influences, covariance)


def _given(given: Mapping[str, float], law: type) -> dict[str, float]:
    """Return given values by the names of a design; names of a formula are those of its columns."""
    columns = dict(law.formula.columns) if issubclass(law, FormulaLaw) else {}
    return {columns.get(name, name): value for name, value in given.items()}


def answer(
    asked: Asked, result: FitResult, read: ReadRuns, resampled: Bootstrap | None, level: float, by: str
) -> dict[str, Any]:
    """Return all requested answers of a fit as plain data."""
    answers: dict[str, Any] = {}
    far, runs = [], read.runs
    if asked.decisions:
        decided = estimates.estimate(result, asked.decisions, resampled=resampled, level=level)
        answers["decisions"] = estimates.to_json(decided, level)
        far = estimates.beyond_each(decided, runs)
    if asked.predictions:
        predicted = [predict_run(result, one, resampled, level) for one in asked.predictions]
        answers["predictions"] = [one.to_json() for one in predicted]
        reads = type(result.law).inputs
        times = [
            (dict(one.given), estimates.beyond(estimates.reach(one.given), runs, reads)) for one in asked.predictions
        ]
        far += [{"given": given, "times": factors} for given, factors in times if factors]
    if asked.decisions or asked.predictions:
        answers["beyond"] = far
    if asked.profiles:
        answers["profiles"] = [_profiled(one, result, read, level) for one in asked.profiles]
    if asked.influences:
        answers["influence"] = [_decisive(one, result, read) for one in asked.influences]
    return answers


def _named(one: Estimand) -> dict[str, Any]:
    return {"name": one.name, "symbol": one.symbol, "given": dict(one.given)}


def _profiled(one: Estimand, result: FitResult, read: ReadRuns, level: float) -> dict[str, Any]:
    try:
        profiled = profile(result, read.runs, one.functional, level)
    except ValueError as why:
        return _named(one) | {"reason": told(why)}
    ends = {k: v for k, v in finite(profiled).items() if k in ("low", "middle", "high")}
    return _named(one) | ends | {"level": level}


def _decisive(one: Estimand, result: FitResult, read: ReadRuns) -> dict[str, Any]:
    try:
        decided = deciding(result, read.runs, one.functional)
    except ValueError as why:
        return _named(one) | {"reason": told(why)}
    runs = [_run_in_words(read, result, i) for i in decided.runs]
    return _named(one) | {"rows": [int(read.rows[i]) for i in decided.runs], "runs": runs} | decided.to_json()


def _run_in_words(read: ReadRuns, result: FitResult, run: int) -> str:
    """Return a label of a run: the sizes that the law reads, and its loss."""
    sizes = {name: value_of(read.runs.design, name)[run] for name in type(result.law).inputs}
    words = [f"{name} {format(float(size), 3)}" for name, size in sizes.items()]
    return ", ".join([*words, f"{result.output} {read.runs.loss[run]:.4g}"])
