"""Chain a fit of the loss and a fit of the score as a function of the loss, with the uncertainty of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool

from moejax.errors import UserError
from moejax.fit.fit_result import NO_COVARIANCE, FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.selection.metrics import metrics
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.fit.uncertainty.noise import outliers_in_words
from moejax.fit.uncertainty.uncertainty import Uncertainty
from moejax.laws.scores.chained_law import chained_law
from moejax.wording import argument


def fit_chain(
    loss: tuple[type, ReadRuns],
    score: tuple[type, ReadRuns],
    runs: Runs,
    without: Bool[np.ndarray, " scores"],
    *,
    how: Mapping[str, str],
    **options: Any,
) -> FitResult:
    """Fit a loss law and a law of scores, leaving out some rows of the scores, and chain the two fits.

    Args:
      loss: the loss law and its runs.
      score: the law of scores and its runs.
      runs: scores with the inputs of the loss law (``with_loss_design``).
      without: the rows of the scores to leave out; the runs of the loss in these rows are left out too.
      how: arguments of ``with_uncertainty``.
      options: arguments of ``fit_law``.
    """
    (loss_law, losses), (score_law, scores) = loss, score
    of_loss, of_score = (
        with_uncertainty(fit_law(law, kept, **options), kept, **how, dropped=read.dropped)
        for law, read, kept in (
            (loss_law, losses, losses.runs.only(~np.isin(losses.rows, scores.rows[without]))),
            (score_law, scores, scores.runs.only(~without)),
        )
    )
    return chain(of_loss, of_score, runs.only(~without))


def chain(loss_fit: FitResult, score_fit: FitResult, runs: Runs) -> FitResult:
    """Compose a fit of the loss and a fit of the score into a fit of the score as a function of sizes.

    The two fits are treated as independent, even if both use the same runs. The score is fitted to measured losses, so
    it does not depend on the residuals of the loss law. The objective, AICc and BIC are sums over both fits.

    Args:
      loss_fit: a fit with its uncertainty, as returned by ``moejax.fit``.
      score_fit: a fit, with its uncertainty, of a law that reads only the loss.
      runs: designs with all inputs of the loss law, and their scores.

    Raises:
      UserError: the laws cannot be chained, or a fit has no uncertainty.
    """
    cls = chained_law(type(loss_fit.law), type(score_fit.law))
    if loss_fit.uncertainty is None or score_fit.uncertainty is None:
        raise UserError(NO_COVARIANCE)
    law: Any = cls(
        **{f.name: getattr(fit.law, f.name) for fit in (loss_fit, score_fit) for f in dataclasses.fields(fit.law)}
    )
    return dataclasses.replace(
        score_fit,
        law=law,
        value=loss_fit.value + score_fit.value,
        gradient_norm=max(loss_fit.gradient_norm, score_fit.gradient_norm),
        converged=loss_fit.converged and score_fit.converged,
        starts=loss_fit.starts + score_fit.starts,
        agreeing=min(loss_fit.agreeing, score_fit.agreeing),
        fixed=loss_fit.fixed | score_fit.fixed,
        unidentified=loss_fit.unidentified | score_fit.unidentified,
        condition_number=max(loss_fit.condition_number, score_fit.condition_number),
        unidentified_directions=loss_fit.unidentified_directions + score_fit.unidentified_directions,
        undetermined=loss_fit.undetermined + score_fit.undetermined,
        alternatives=tuple(
            {**loss_fit.coefficients, **score_fit.coefficients, **other}
            for other in loss_fit.alternatives + score_fit.alternatives
        ),
        aicc=loss_fit.aicc + score_fit.aicc,
        bic=loss_fit.bic + score_fit.bic,
        metrics=metrics(law, runs, score_fit.output),
        noise=score_fit.noise,
        loss_scatter=loss_fit.noise,
        uncertainty=_both(loss_fit, score_fit, (loss_fit.uncertainty, score_fit.uncertainty)),
    )


def _both(loss_fit: FitResult, score_fit: FitResult, each: tuple[Uncertainty, Uncertainty]) -> Uncertainty:
    """Return the uncertainty of two independent fits: the axes of both, concatenated."""
    known = all(one.axes for one in each)
    # Each fit measures steps along its axes in units of its own scatter. Convert them to a common unit.
    sizes = [fit.noise if fit.noise > 0 else 1.0 for fit in (loss_fit, score_fit)]
    axes = [
        {name: step * size for name, step in axis.items()}
        for one, size in zip(each, sizes, strict=True)
        for axis in one.axes
    ]
    deviations = [float(d) / size for one, size in zip(each, sizes, strict=True) for d in one.deviations]
    before = 0
    leverages: list[Any] = []
    for one in each:
        after = len(axes) - before - len(one.axes)
        leverages += [tuple((0.0,) * before + tuple(row) + (0.0,) * after for row in rows) for rows in one.leverages]
        before += len(one.axes)
    clustered = known and all(one.leverages for one in each)
    said = [
        *outliers_in_words(loss_fit.outliers, loss_fit.output, loss_fit.metrics.r_squared),
        *each[0].warnings,
    ]
    return dataclasses.replace(
        each[1],
        ranges=each[0].ranges,
        axes=tuple(axes) if known else (),
        why_none=next((one.why_none for one in each if one.why_none), ""),
        few=next((one.few for one in each if one.few), ""),
        deviations=tuple(deviations) if known else (),
        leverages=tuple(leverages) if clustered else (),
        degrees_of_freedom=min(one.degrees_of_freedom for one in each),
        draw_count=min(one.draw_count for one in each),
        warnings=(*each[1].warnings, *(f"Loss fit: {words}" for words in said)),
        dropped=tuple(dict.fromkeys((*each[0].dropped, *each[1].dropped))),
    )


def with_loss_design(loss_runs: Runs, loss_rows: np.ndarray, score_runs: Runs, score_rows: np.ndarray) -> Runs:
    """Return the runs with a score, with the loss law's inputs as their design.

    Args:
      loss_rows: table rows of the runs with a loss.
      score_rows: table rows of the runs with a score.

    Raises:
      UserError: a run with a score is not among the runs with a loss.
    """
    place = {int(row): number for number, row in enumerate(loss_rows)}
    if alone := [int(row) for row in score_rows if int(row) not in place]:
        raise UserError(
            f"Row {alone[0]} has a score but is not in the fit of the loss ({len(alone)} such rows); add its "
            f"sizes and loss, or leave it out with {argument('where')}."
        )
    own = loss_runs.where(np.array([place[int(row)] for row in score_rows]))
    return dataclasses.replace(own, loss=score_runs.loss, weight=score_runs.weight, output=score_runs.output)
