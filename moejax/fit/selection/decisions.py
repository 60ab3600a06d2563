"""Compare the decisions of several laws that the runs do not distinguish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.estimands import (
    NoDecision,
    decision_estimands,
    prediction_estimand,
    what_is_decided,
    where_in_words,
)
from moejax.fit.uncertainty.estimates import OPTIMAL_LOSS, Estimate, beyond, estimate, reach
from moejax.fit.uncertainty.extrapolation import sentences
from moejax.float64 import float64
from moejax.interval import in_percent
from moejax.json_text import finite
from moejax.laws.design import FIELDS
from moejax.quantities import format
from moejax.result import BLANK, NOT_DETERMINED, Column, Result, Shown, Table, Written
from moejax.wording import told

SHOWN = (
    "optimal_params_active",
    "optimal_params_total",
    "optimal_tokens",
    OPTIMAL_LOSS,
    "efficiency_leverage",
    "optimal_flops",
)
"""Decisions that are compared."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LawDecisions(Shown):
    """The optimum at the same given quantities under each of several fitted laws."""

    given: Mapping[str, float]
    decided: Mapping[str, tuple[Estimate, ...]]
    """Decisions with intervals, keyed by law."""
    excess: Mapping[str, Mapping[str, float]]
    """Loss of a law's optimum minus the lowest loss, under each other law that predicts it; keyed by both laws."""
    reasons: Mapping[str, str]
    """Reason of each law without a decision."""
    far: Mapping[str, tuple[str, ...]]
    """Sentences on the extrapolation beyond the runs, keyed by law."""

    @property
    def safest(self) -> str | None:
        """Law whose optimum has the lowest maximum excess loss under the other laws; None if unknown."""
        worst = {law: max(others.values()) for law, others in self.excess.items() if others}
        return min(worst, key=lambda law: worst[law]) if len(worst) > 1 else None

    def summary(self) -> Result:
        """Return a table with a row per law, and the law whose optimum is best in the worst case."""
        names = list(dict.fromkeys(one.name for each in self.decided.values() for one in each))
        rows = []
        for law, each in self.decided.items():
            of = {one.name: one for one in each}
            worst = max(self.excess[law].values(), default=None)
            rows.append([law, *(_cell(of[name]) if name in of else BLANK for name in names), worst])
        columns = [Column("law"), *(Column(name, words=True, keys=_keys(name)) for name in names)]
        notes = [f"! {law}: {' '.join(said)}" for law, said in self.far.items()]
        notes += [f"{law}: {why}" for law, why in self.reasons.items()]
        if self.safest is not None:
            worst = max(self.excess[self.safest].values())
            notes.insert(
                0,
                f"The optimum of {self.safest} is the safest: under the other laws, its loss is at most {worst:.4f} "
                f"nats above the lowest loss. Excess: largest such difference of each optimum.",
            )
            columns.append(Column("excess", ".4f", unit="nats"))
        else:
            rows = [row[:-1] for row in rows]
        every = [one for each in self.decided.values() for one in each if one.interval is not None]
        notes += dict.fromkeys(f"Intervals: {in_percent(one.level)}, {one.by}." for one in every)
        table = Table(f"Decisions at {where_in_words(self.given)}", columns, rows, notes, key="decisions")
        return Result(tables=[table], data=self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by field; non-finite numbers become null."""
        return {
            "given": dict(self.given),
            "decided": {law: [one.to_json() for one in each] for law, each in self.decided.items()},
            "excess": finite(self.excess),
            "safest": self.safest,
            "no_decision": dict(self.reasons),
        }


def decide_by_each(
    fits: Mapping[str, FitResult],
    runs: Runs,
    given: Mapping[str, float],
    each: Mapping[str, Mapping[str, float]],
    level: float = 0.9,
) -> LawDecisions:
    """Return the decisions of each law at the given quantities, or the reason why it has none.

    Args:
      fits: fits of different laws to the same runs, keyed by law.
      runs: the fitted runs, for intervals and extrapolation factors.
      given: quantities of the decision, such as ``{"flops": 1e22, "expansion": 16}``.
      each: the quantities among ``given`` that each law's decisions need (``given_to_each``).
      level: coverage of the intervals.
    """
    decided: dict[str, tuple[Estimate, ...]] = {}
    reasons: dict[str, str] = {}
    for name, fit in fits.items():
        try:
            if not each[name]:
                raise NoDecision(what_is_decided(type(fit.law)))
            asked = [one for one in decision_estimands(type(fit.law), each[name]) if one.name in SHOWN]
            decided[name] = estimate(with_uncertainty(fit, runs), asked, level=level)
        except NoDecision as why:
            reasons[name] = told(why)
    designs = {name: reach(given, own) for name, own in decided.items()}
    best = {name: one.value for name, own in decided.items() for one in own if one.name == OPTIMAL_LOSS}
    lowest = {name: loss for name, loss in best.items() if np.isfinite(loss)}
    excess = {
        name: {
            other: loss - lowest[other]
            for other in lowest
            if other != name and (loss := _loss(fits[other], values)) is not None
        }
        for name, values in designs.items()
    }
    far = {name: tuple(sentences(beyond(values, runs, fits[name].law.inputs))) for name, values in designs.items()}
    return LawDecisions(
        given=dict(given),
        decided=decided,
        excess=excess,
        reasons=reasons,
        far={name: said for name, said in far.items() if said},
    )


def _loss(fit: FitResult, values: Mapping[str, float]) -> float | None:
    """Return the loss that a law predicts for a design; None if the design lacks an input or the loss is not finite."""
    values = {name: value for name, value in values.items() if name in (*FIELDS, *fit.law.inputs)}
    try:
        predicted = prediction_estimand(fit.law, values, "loss")
    except UserError:
        return None
    with float64():
        loss = float(predicted.functional(fit.law))
    return loss if np.isfinite(loss) else None


def _keys(name: str) -> tuple[str, ...]:
    return (name, f"{name}_low", f"{name}_high")


def _cell(one: Estimate) -> Written:
    """Return a decision with its interval, or with the reason for its absence."""
    interval = one.interval
    if np.isnan(one.value):
        return Written(None, "no answer")
    if interval is None or interval.uninformative:
        return Written((one.value, None, None), f"{format(one.value)} ({NOT_DETERMINED})")
    return Written((one.value, interval.low, interval.high), f"{format(one.value)} {interval.bounds()}")


def with_decisions(result: Result, decisions: Sequence[LawDecisions]) -> Result:
    """Return a comparison's result with tables of the decisions below it."""
    if not decisions:
        return result
    tables = [table for one in decisions for table in one.summary().tables]
    return replace(
        result,
        tables=[*result.tables, *tables],
        for_latex=[*result.for_latex, *tables],
        data=result.data | {"decisions": [one.to_json() for one in decisions]},
    )
