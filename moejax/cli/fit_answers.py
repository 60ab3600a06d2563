"""What is asked of a fitted law: decisions, predictions, profiles, and the runs that decide."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moejax.cli.pairs import pairs
from moejax.errors import UserError
from moejax.wording import told

if TYPE_CHECKING:
    from moejax.fit.bootstrap import Bootstrap
    from moejax.fit.estimands import Estimand
    from moejax.fit.fit_result import FitResult
    from moejax.fit.read_runs import ReadRuns


def add_answer_arguments(group: Any) -> None:
    """Add what may be asked."""
    group.add_argument(
        "--decide",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="what the law says is best there, such as flops=1e24 or flops=1e24,expansion=16",
    )
    group.add_argument(
        "--predict",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="a run that is not trained yet, such as params_active=7B,tokens=1T, and where its loss should fall",
    )
    group.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="values that the runs do not reject, of a coefficient, of a decision (N*, D*, …), of a predicted loss",
    )
    group.add_argument(
        "--influence",
        action="append",
        default=[],
        metavar="NAME",
        help="the three runs that decide it, checked by fitting without them",
    )


@dataclass(frozen=True)
class Asked:
    """What the options ask for, found before anything is fitted."""

    decisions: Sequence[Estimand]
    predictions: Sequence[Estimand]
    profiles: Sequence[Estimand]
    influences: Sequence[Estimand]
    covariance: str


def asked_of(law: type, fixed: Sequence[str], arguments: argparse.Namespace) -> Asked:
    """The estimands that the options name.

    Raises:
      UserError: a name is not known, or what is given decides nothing; the sentence has what would.
    """
    from moejax.fit.bootstrap import RESAMPLED
    from moejax.fit.covariance import COVARIANCES
    from moejax.fit.estimands import coefficient_estimands, decision_estimands, find, prediction_estimand

    if arguments.by not in RESAMPLED:
        raise UserError(f"--by {arguments.by} is not known; choose {' or '.join(RESAMPLED)}.")
    covariance = arguments.covariance.replace("-", "_")
    if covariance not in COVARIANCES:
        raise UserError(f"--covariance {arguments.covariance} is not known; choose {' or '.join(COVARIANCES)}.")
    decisions = decision_estimands(law)
    for text in arguments.decide:
        decisions += decision_estimands(law, _given(text, "--decide"))
    # What needs less than is given is asked at the same place by several options.
    decisions = list({one.title: one for one in decisions}.values())
    predictions = [prediction_estimand(law, _given(text, "--predict")) for text in arguments.predict]
    known = [*coefficient_estimands(law, fixed), *decisions, *predictions]
    profiles, influences = (
        [one for name in names for one in find(name, known, law)] for names in (arguments.profile, arguments.influence)
    )
    return Asked(decisions, predictions, profiles, influences, covariance)


def _given(text: str, option: str) -> dict[str, float]:
    from moejax.quantities import parse

    return {name: parse(value) for name, value in pairs(text.split(","), option)}


def answer(
    asked: Asked, result: FitResult, read: ReadRuns, resampled: Bootstrap | None, level: float, by: str
) -> tuple[list[str], dict[str, Any]]:
    """Everything that is asked of a fit, as paragraphs and as plain data."""
    from moejax.fit import estimates, prediction

    text, plain, runs = [], {}, read.runs
    options = {"covariance": asked.covariance, "by": by}
    if asked.decisions:
        decided = estimates.estimate(result, runs, asked.decisions, **options, resampled=resampled, level=level)
        text.append(estimates.table(decided, runs, level))
        plain["decisions"] = estimates.to_json(decided, level)
        plain["beyond"] = estimates.beyond_each(decided, runs)
    if asked.predictions:
        predicted = [
            prediction.predict_run(result, runs, one, resampled, level, **options) for one in asked.predictions
        ]
        text.append("\n".join(one.text(runs, level) for one in predicted))
        plain["predictions"] = [one.to_json() for one in predicted]
        far = [(one.estimand.given, estimates.beyond(estimates.reach(one.estimand.given), runs)) for one in predicted]
        plain["beyond"] = plain.get("beyond", []) + [{"given": dict(g), "times": times} for g, times in far if times]
    if asked.profiles:
        lines, plain["profiles"] = zip(*(_profiled(one, result, read, level) for one in asked.profiles), strict=True)
        text.append("\n".join(lines))
    if asked.influences:
        lines, plain["influence"] = zip(*(_decisive(one, result, read) for one in asked.influences), strict=True)
        text += lines
    return text, plain


def _profiled(one: Estimand, result: FitResult, read: ReadRuns, level: float) -> tuple[str, dict[str, Any]]:
    from moejax.fit.metrics import plain
    from moejax.fit.profile import in_words, profile

    named = {"name": one.name, "given": dict(one.given)}
    try:
        found = profile(result, read.runs, one.functional, level)
    except ValueError as why:
        return f"{one.title}: no profile. {told(why)}", named | {"reason": told(why)}
    ends = {k: v for k, v in plain(found).items() if k in ("low", "middle", "high")}
    return f"{one.title} = {in_words(found, level)}", named | ends | {"level": level}


def _decisive(one: Estimand, result: FitResult, read: ReadRuns) -> tuple[str, dict[str, Any]]:
    from moejax.fit.influence import deciding

    named = {"name": one.name, "given": dict(one.given)}
    try:
        found = deciding(result, read.runs, one.functional)
    except ValueError as why:
        return f"{one.title}: no influence. {told(why)}", named | {"reason": told(why)}
    rows = [int(read.rows[i]) for i in found.runs]
    labels = [f"row {row} ({_run_in_words(read, result, i)})" for row, i in zip(rows, found.runs, strict=True)]
    return found.text(one.title, labels), named | {"rows": rows} | found.to_json()


def _run_in_words(read: ReadRuns, result: FitResult, run: int) -> str:
    """What tells a run apart: the sizes that the law reads, and its loss."""
    from moejax.quantities import format

    sizes = {name: getattr(read.runs.design, name)[run] for name in type(result.law).inputs}
    words = [f"{name} {format(float(size), 3)}" for name, size in sizes.items()]
    return ", ".join([*words, f"{result.output} {read.runs.loss[run]:.4g}"])
