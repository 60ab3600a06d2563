"""Provide ``moejax.fit(runs, law)``: fit a law to runs in one call."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moejax.config import unknown
from moejax.errors import UserError
from moejax.fit.answers import Answers
from moejax.fit.chain import chain, with_loss_design
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import PENALTIES, Penalty, named_penalty
from moejax.fit.selection.held_out_runs import held_out_runs
from moejax.fit.selection.holdout import hold_out as test_held_out
from moejax.fit.selection.holdout import split_by
from moejax.fit.tables.column_names import is_formula, law_of_formula
from moejax.fit.tables.read_runs import ReadRuns, read_runs
from moejax.fit.uncertainty.bootstrap import bootstrap as resample
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.laws import law_class
from moejax.laws.formula_law import formula_law
from moejax.say import say
from moejax.wording import listed, shown


def fit(
    runs: Any,
    law: Any,
    *,
    loss_law: Any = None,
    bootstrap: int = 0,
    hold_out: str | Sequence[str] | None = (),
    **options: Any,
) -> FitResult:
    """Fit a law to runs. Confidence and prediction intervals of the result are clustered by group (runs of one
    architecture).

    Args:
      runs: the result of ``moejax.read_runs``, or a file or DataFrame to read. Messages about omitted or doubtful rows
        go to stderr.
      law: a law's name, a paper's first author, a formula such as ``"loss = E + A/N^alpha"``, or a law's class. The
        coefficients of a law instance are an additional initial guess.
      loss_law: for a score law, the loss law to chain it to, which is fitted to the same file or DataFrame.
        The result then predicts the score of a run of any size (``moejax.fit.chain``).
      bootstrap: number of resamples of the runs by group. The fit keeps the coefficients of all resamples and computes
        the intervals of its answers from them. With 0, intervals come from standard errors.
      hold_out: one or several rules that select held-out runs, as in ``moejax.compare``. The fit is to all runs;
        ``summary()`` also has the errors, on the held-out runs, of fits without them.
      options: options of ``moejax.fit.search.fit_law.fit_law``, such as ``fixed={"irreducible": 1.6}`` or ``seed=1``;
        for a file or DataFrame, options of ``moejax.read_runs``, such as ``best_by=["lr"]``; and ``penalty="squared"``,
        ``residual`` and ``delta`` as in ``moejax fit``.

    Returns:
      The fit, with methods such as ``summary()``, ``conf_int()``, ``predict(design)``, ``plot(runs)``, ``save(path)``.

    Raises:
      UserError: the law or an option is unknown, or the runs cannot be read or do not determine the law.

    Example:
      >>> fit = mj.fit("runs.csv", "chinchilla", where=["tokens > 1e9"])
      >>> fit.conf_int()
      >>> runs = mj.read_runs("runs.csv")
      >>> mj.fit(runs, "loss = E + A/N^a + B/D^b", fixed={"E": 1.7})
      >>> mj.fit(runs, "chinchilla", hold_out="tokens").summary()
    """
    reading, options = _sorted(options)
    if loss_law is not None:
        for name, given in (("bootstrap", bootstrap), ("hold_out", hold_out)):
            if given:
                raise UserError(f"A fit with loss_law has no {name}; leave {name} out.")
        return _chained(runs, law, loss_law, reading, options)
    if reading and isinstance(runs, ReadRuns | Runs):
        raise UserError(
            f"{listed(reading)} {'applies' if len(reading) == 1 else 'apply'} only while reading a table, and these "
            f"runs have already been read. Pass {'it' if len(reading) == 1 else 'them'} to moejax.read_runs instead."
        )
    formula = isinstance(law, str) and is_formula(law)
    if formula and isinstance(runs, Runs):
        law = formula_law(law, tuple(runs.design.columns or ()))
    elif formula:
        if not isinstance(runs, ReadRuns):
            runs = _read(runs, law, reading)
        law = law_of_formula(law, runs.frame, mapping=runs.read_from)
    elif isinstance(law, str):
        law = law_class(law)
    read = runs if isinstance(runs, ReadRuns | Runs) else _read(runs, law, reading)
    own, dropped = (read, ()) if isinstance(read, Runs) else (read.runs, read.dropped)
    rules = [hold_out] if isinstance(hold_out, str) else [*(hold_out or ())]
    if rules and not isinstance(read, ReadRuns):
        raise UserError("hold_out selects rows of a table; give a file, a DataFrame or the result of moejax.read_runs.")
    splits = [split_by(read, rule) for rule in rules if isinstance(read, ReadRuns)]
    result = with_uncertainty(fit_law(law, own, **options), own, dropped=dropped)
    if isinstance(read, ReadRuns):
        result = replace(result, reading=read.reading)
        if splits:
            tested = test_held_out(law, own, splits, **options)
            errors = Answers().with_held_out(tested, held_out_runs(tested, read.rows))
            result = replace(result, held_out=errors)
    return replace(result, resamples=resample(result, own, bootstrap).kept()) if bootstrap else result


def _read(table: Any, law: Any, options: dict[str, Any]) -> ReadRuns:
    read = read_runs(table, law, **options)
    if read.notes:
        say(*read.notes)
    return read


def _sorted(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into options of ``read_runs`` and options of ``fit_law``, each keyed by option name."""
    reading, fitting, penalty = ({*inspect.signature(one).parameters} for one in (read_runs, fit_law, named_penalty))
    reading -= {"path", "law"}
    fitting -= {"law", "runs"}
    for name in options:
        if name not in reading | fitting | penalty:
            raise UserError(unknown(f"The option {name!r}", name, sorted(reading | fitting | penalty)))
    fit_options = {name: value for name, value in options.items() if name in fitting}
    asked = {name: value for name, value in options.items() if name in penalty}
    if not isinstance(asked.get("penalty", ""), str | Penalty | None):
        raise UserError(f"penalty is {shown(asked['penalty'])}; give one of {', '.join(PENALTIES)}.")
    if asked and not isinstance(asked.get("penalty", ""), str):
        if len(asked) > 1:
            raise UserError(
                "residual and delta apply to a penalty given by name; set them as fields of the penalty object."
            )
    elif asked:
        fit_options["penalty"] = named_penalty(**{n: v for n, v in asked.items() if n != "penalty" or v})
    return {name: value for name, value in options.items() if name in reading}, fit_options


def _chained(runs: Any, law: Any, loss_law: Any, reading: dict[str, Any], options: dict[str, Any]) -> FitResult:
    if isinstance(runs, ReadRuns | Runs):
        raise UserError(
            "A fit with loss_law reads the table twice; give the file or DataFrame instead of the result of read_runs."
        )
    losses, scores = (_read(runs, one, reading) for one in (loss_law, law))
    every = with_loss_design(losses.runs, losses.rows, scores.runs, scores.rows)
    return chain(fit(losses, loss_law, **options), fit(scores, law, **options), every)
