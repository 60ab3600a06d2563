"""Turn questions about a fitted law into estimands: decisions, predictions, profiles, and influential runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moejax.errors import UserError
from moejax.fit.uncertainty.bootstrap import RESAMPLED
from moejax.fit.uncertainty.covariance import COVARIANCES
from moejax.fit.uncertainty.estimands import (
    Estimand,
    coefficient_estimands,
    decision_estimands,
    find,
    prediction_estimand,
)
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import without_effect


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
