"""Turn questions about a fit into estimands, and compute their answers, which ``fit.json`` also stores."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moejax.config import restored
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import RESAMPLED
from moejax.fit.selection.held_out_runs import TestedRuns
from moejax.fit.selection.holdout import HeldOut, SplitErrors, pooled, split_errors
from moejax.fit.selection.metrics import Metrics
from moejax.fit.sweeps.ways_through_sweeps import Sweeps
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.bootstrap import Bootstrap, ResampledCoefficients
from moejax.fit.uncertainty.covariance import COVARIANCES
from moejax.fit.uncertainty.derivatives import deciding
from moejax.fit.uncertainty.estimands import (
    Estimand,
    Named,
    coefficient_estimands,
    decision_estimands,
    find,
    prediction_estimand,
)
from moejax.fit.uncertainty.estimates import (
    Beyond,
    Estimate,
    RunPrediction,
    beyond,
    beyond_each,
    estimate,
    predict_run,
    reach,
    with_expansion_of_runs,
)
from moejax.fit.uncertainty.extrapolation import where_decided
from moejax.fit.uncertainty.profile import profile
from moejax.json_text import fields, finite
from moejax.laws.design import value_of
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import without_effect
from moejax.quantities import format
from moejax.result import Result, Shown, imported
from moejax.run_table import DataFrame
from moejax.wording import told


@dataclass(frozen=True)
class Asked:
    """Estimands of the requested decisions, predictions, profiles and influences; their names are checked before the
    fit."""

    decisions: Sequence[Estimand]
    predictions: Sequence[Estimand]
    profiles: Sequence[Estimand]
    influences: Sequence[Estimand]
    covariance: str


def asked_of(
    law: type,
    output: str,
    fixed: Sequence[str],
    *,
    decide: Sequence[Mapping[str, float]] = (),
    predict: Sequence[Mapping[str, float]] = (),
    profile: Sequence[str] = (),
    influence: Sequence[str] = (),
    covariance: str = "sandwich",
    by: str = "group",
) -> Asked:
    """Return the requested estimands for a fit of the given output of a law.

    Args:
      decide: the given values for each decision, such as ``{"flops": 1e22}``.
      predict: designs of runs to predict.

    Raises:
      UserError: a name is unknown, or given values determine no decision; the message lists values that do.
    """
    if by not in RESAMPLED:
        raise UserError(f"--by must be {' or '.join(RESAMPLED)}; got {by}.")
    kind = covariance.replace("-", "_")
    if kind not in COVARIANCES:
        raise UserError(f"--covariance must be {' or '.join(COVARIANCES)}; got {covariance}.")
    decisions = decision_estimands(law)
    for given in decide:
        decisions += decision_estimands(law, _given(given, law))
    # Several options may request the same estimand if it needs fewer values than given.
    decisions = list({one.title: one for one in decisions}.values())
    predictions = [prediction_estimand(law, _given(given, law), output) for given in predict]
    held = (*fixed, *without_effect(law, output))
    if wrong := [name for name in (*profile, *influence) if name in held]:
        why = "is fixed" if wrong[0] in fixed else f"does not affect the fitted {output}"
        raise UserError(f"{wrong[0]} {why}, so the runs do not determine it; choose another coefficient.")
    known = [*coefficient_estimands(law, held), *decisions, *predictions]
    profiles, influences = ([one for name in names for one in find(name, known, law)] for names in (profile, influence))
    return Asked(decisions, predictions, profiles, influences, kind)


def _given(given: Mapping[str, float], law: type) -> dict[str, float]:
    """Return ``given`` with a formula's names replaced by its columns."""
    columns = dict(law.formula.columns) if issubclass(law, FormulaLaw) else {}
    return {columns.get(name, name): value for name, value in given.items()}


@dataclass(frozen=True, kw_only=True)
class StandardErrors:
    """Standard errors and intervals of all coefficients with a standard error."""

    kind: str
    by: str
    values: Mapping[str, float | None]
    level: float
    intervals: Mapping[str, tuple[float | None, float | None]]

    @classmethod
    def of(cls, fit: FitResult, level: float) -> StandardErrors | None:
        """Return the standard errors of a fit; None if the fit has no uncertainty."""
        if fit.uncertainty is None:
            return None
        rows = replace(fit, resamples=None).coefficient_rows(level)
        rows = [row for row in rows if row.name not in fit.without_error]
        return cls(
            kind=fit.uncertainty.covariance,
            by=fit.uncertainty.by,
            values={row.name: finite(row.error) for row in rows},
            level=level,
            intervals={row.name: (finite(row.low), finite(row.high)) for row in rows},
        )


@dataclass(frozen=True, kw_only=True)
class ReadAs:
    """Columns of ``predictions.csv`` from which the fitted runs can be read again."""

    loss: str
    group: str | None = None
    weight: str | None = None


@dataclass(frozen=True, kw_only=True)
class Profiled(Named):
    """The profile interval of an estimand, or the reason why it has none."""

    low: float | None = None
    """Lower end; None if the runs do not reject any smaller value."""
    middle: float | None = None
    high: float | None = None
    level: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Decisive(Named):
    """The runs with the most influence on an estimand, or the reason why they are unknown."""

    value: float | None = None
    rows: tuple[int, ...] = ()
    """Table rows of the runs, the most influential first."""
    runs: tuple[str, ...] = ()
    """Sizes and output of each run, as text."""
    predicted: tuple[float | None, ...] = ()
    """First-order prediction of the estimand without each run."""
    refitted: tuple[float | None, ...] = ()
    """The estimand after a refit without each run."""
    without_all: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Answers(Shown):
    """The answers about a fit; field names are the entries of ``fit.json``."""

    notes: tuple[str, ...] = ()
    """Messages about the table of runs."""
    standard_errors: StandardErrors | None = None
    read: ReadAs | None = None
    held_out: tuple[SplitErrors, ...] = ()
    held_out_together: Metrics | None = None
    """Errors over the held-out runs of all splits, if there are several splits."""
    held_out_runs: TestedRuns | None = None
    sweeps: Sweeps | None = None
    bootstrap: ResampledCoefficients | None = None
    decisions: tuple[Estimate, ...] = ()
    predictions: tuple[RunPrediction, ...] = ()
    beyond: tuple[Beyond, ...] = ()
    """Decisions and predictions outside the fitted ranges."""
    profiles: tuple[Profiled, ...] = ()
    influence: tuple[Decisive, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings of the fit, for readers who see the answers without the fit."""

    def with_held_out(self, splits: Sequence[HeldOut], runs: DataFrame) -> Answers:
        """Return a copy with the splits' errors, and with the table ``runs`` from ``held_out_runs``."""
        together = pooled(splits) if len(splits) > 1 else None
        tested = TestedRuns.of(runs)
        return replace(self, held_out=split_errors(splits), held_out_together=together, held_out_runs=tested)

    def summary(self) -> Result:
        """Return the tables of the answers and the warnings."""
        summary = imported("fit.summary")
        warnings = [*summary.extrapolations(self), *self.warnings]
        tables, for_latex = summary.tables(self), summary.latex_decisions(self.decisions)
        return Result(warnings=warnings, tables=tables, for_latex=for_latex, data=self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by entry of ``fit.json``; entries that were not requested are left out."""
        given = {name: value for name, value in fields(self).items() if value not in ((), None)}
        return {"notes": [], "beyond": [], **{name: finite(value) for name, value in given.items()}}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Answers:
        """Restore the answers from the entries of a ``fit.json``.

        Raises:
          ValueError: an entry is invalid. An entry that is missing or has another type may also raise ``LookupError``,
            ``TypeError`` or ``AttributeError``.
        """
        hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if plain.get(name) is not None}
        return cls(**{name: restored(hint, plain[name], name) for name, hint in hints.items()})


def answer(
    answers: Answers,
    asked: Asked,
    fit: FitResult,
    read: ReadRuns,
    resampled: Bootstrap | None = None,
    level: float = 0.9,
) -> Answers:
    """Return a copy of ``answers`` with the answers to all requested questions."""
    decided = with_expansion_of_runs(estimate(fit, asked.decisions, resampled=resampled, level=level), read.runs)
    reads = type(fit.law).inputs
    reached = [(one.given, beyond(reach(one.given), read.runs, reads)) for one in asked.predictions]
    far = [Beyond(given=given, times=times) for given, times in reached if times]
    return replace(
        answers,
        bootstrap=None if resampled is None else resampled.stored(level),
        decisions=decided,
        predictions=tuple(predict_run(fit, one, resampled, level) for one in asked.predictions),
        beyond=(*beyond_each(decided, where_decided(read.runs)), *far),
        profiles=tuple(_profiled(one, fit, read, level) for one in asked.profiles),
        influence=tuple(_decisive(one, fit, read) for one in asked.influences),
    )


def _profiled(one: Estimand, fit: FitResult, read: ReadRuns, level: float) -> Profiled:
    try:
        interval = profile(fit, read.runs, one.functional, level)
    except ValueError as why:
        return Profiled(**one.naming, reason=told(why))
    low, middle, high = (finite(end) for end in (interval.low, interval.middle, interval.high))
    return Profiled(**one.naming, low=low, middle=middle, high=high, level=level)


def _decisive(one: Estimand, fit: FitResult, read: ReadRuns) -> Decisive:
    try:
        most = deciding(fit, read.runs, one.functional)
    except ValueError as why:
        return Decisive(**one.naming, reason=told(why))
    return Decisive(
        **one.naming,
        value=finite(most.value),
        rows=tuple(int(read.rows[run]) for run in most.runs),
        runs=tuple(_in_words(fit, read, run) for run in most.runs),
        predicted=tuple(finite(most.predicted)),
        refitted=tuple(finite(most.refitted)),
        without_all=finite(most.without_all),
    )


def _in_words(fit: FitResult, read: ReadRuns, run: int) -> str:
    sizes = {name: value_of(read.runs.design, name)[run] for name in type(fit.law).inputs}
    words = [f"{name} {format(float(size), 3)}" for name, size in sizes.items()]
    return ", ".join([*words, f"{fit.output} {read.runs.loss[run]:.4g}"])
