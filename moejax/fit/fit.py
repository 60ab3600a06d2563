"""``moejax.fit(runs, law)``: a law fitted to runs, in one call."""

from __future__ import annotations

from typing import Any

from moejax.errors import UserError
from moejax.fit.chain import chain, with_loss_design
from moejax.fit.column_names import is_formula, law_of_formula
from moejax.fit.covariance import with_uncertainty
from moejax.fit.fit_law import fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.read_runs import ReadRuns, read_runs
from moejax.fit.runs import Runs
from moejax.laws.formula_law import formula_law
from moejax.laws.predict import law_class


def fit(runs: Any, law: Any, *, loss_law: Any = None, **options: Any) -> FitResult:
    """Fit a law to runs; intervals and ranges of the result are by group.

    Args:
      runs: what ``moejax.read_runs`` returns; or a file or DataFrame with moejax's columns, which it then reads.
      law: a law's name, a paper's first author, a formula such as ``"loss = E + A/N^alpha"``, a law's class, or a law,
        whose coefficients are one more start.
      loss_law: for a law of scores, the law of the loss that it stands on, fitted to the same file or DataFrame: the
        result then says what a run of any size scores (``moejax.fit.chain``).
      options: of ``moejax.fit.fit_law.fit_law``, such as ``fixed={"irreducible": 1.6}`` or ``seed=1``.

    Raises:
      UserError: there is no such law, or the runs cannot be read for it or cannot set it.
    """
    if loss_law is not None:
        return _chained(runs, law, loss_law, options)
    formula = isinstance(law, str) and is_formula(law)
    if formula and isinstance(runs, Runs):
        law = formula_law(law, tuple(runs.design.columns or ()))
    elif formula:
        if not isinstance(runs, ReadRuns):
            runs = read_runs(runs, law)
        law = law_of_formula(law, runs.frame, mapping=runs.read_from)
    elif isinstance(law, str):
        law = law_class(law)
    read = runs if isinstance(runs, ReadRuns | Runs) else read_runs(runs, law)
    fitted_runs, dropped = (read.runs, read.dropped) if isinstance(read, ReadRuns) else (read, ())
    return with_uncertainty(fit_law(law, fitted_runs, **options), fitted_runs, dropped=dropped)


def _chained(runs: Any, law: Any, loss_law: Any, options: dict[str, Any]) -> FitResult:
    """The fit of a score through the loss, from one table."""
    if isinstance(runs, ReadRuns | Runs):
        raise UserError(
            "A law of scores on a law of the loss reads a table twice, once for each; give the file or DataFrame."
        )
    losses, scores = (read_runs(runs, one) for one in (loss_law, law))
    every = with_loss_design(losses.runs, losses.rows, scores.runs, scores.rows)
    return chain(fit(losses, loss_law, **options), fit(scores, law, **options), every)
