"""Measure the errors of a law's predictions, and compute information criteria."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from moejax.fit.runs import SHARES, Runs, sums_by_group
from moejax.fit.search.objective import Huber, compiled_outputs, penalties_of
from moejax.float64 import float64
from moejax.laws.law import LOSS, Law, unit_of


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Errors over some runs, weighted as in the fit. Losses are in nats per token."""

    runs: int
    mae: float
    """Mean absolute error, nats per token."""
    rmse: float
    """Root of the mean squared error, nats per token."""
    rmse_log: float
    """Root of the mean squared error of log loss, close to the relative error; NaN if a prediction is not positive."""
    r_squared: float
    """Share of the losses' variance that the law predicts; NaN if the losses do not vary."""
    max_relative_error: float
    """Largest |predicted - measured| / measured."""
    huber: float = float("nan")
    """Mean Huber penalty (delta 0.001) of log loss per run: the default objective of a fit."""

    def rmse_of(self, output: str) -> float:
        """Return the RMSE that compares fits to an output: ``rmse_log`` or ``rmse``."""
        return getattr(self, rmse_named(output))


def by_factors(output: str) -> bool:
    """Return whether errors of an output are logarithmic: true for learning rates and batch sizes, false for losses and
    shares.
    """
    return output not in {*LOSS, *SHARES}


def rmse_named(output: str) -> str:
    """Return the field of ``Metrics`` that ``Metrics.rmse_of`` reads for an output."""
    return "rmse_log" if by_factors(output) else "rmse"


def unit_of_errors(output: str) -> str:
    """Return the unit of ``Metrics.rmse_of``."""
    return f"log {output.replace('_', ' ')}" if by_factors(output) else unit_of(output)


def predict(law: Law, runs: Runs, output: str = "loss") -> Float[np.ndarray, " runs"]:
    """Return the predictions of a law for all runs, in float64."""
    with float64():
        return np.asarray(compiled_outputs(law, runs.design, output), np.float64)


def metrics(law: Law, runs: Runs, output: str = "loss") -> Metrics:
    """Return the errors of a law on the runs with positive weight."""
    kept = runs.weight > 0
    return errors(predict(law, runs, output)[kept], runs.loss[kept], runs.weight[kept])


Each = Float[np.ndarray, " runs"]


def errors(predicted: Each, measured: Each, weight: Each) -> Metrics:
    """Return the errors of predictions from any source."""
    error = predicted - measured
    with np.errstate(over="ignore"):
        # The square of an invalid loss may overflow; the fit reports such losses.
        square = np.average(error**2, weights=weight)
        variance = np.average((measured - np.average(measured, weights=weight)) ** 2, weights=weight)
    with float64():
        penalties = np.asarray(penalties_of(Huber(), predicted, measured))
    with np.errstate(divide="ignore", invalid="ignore"):
        # A prediction that is not positive has no logarithm, and so no relative error.
        log_errors = np.log(predicted / measured)
    return Metrics(
        runs=len(measured),
        mae=float(np.average(np.abs(error), weights=weight)),
        rmse=float(np.sqrt(square)),
        rmse_log=float(np.sqrt(np.average(log_errors**2, weights=weight))),
        r_squared=float(1 - square / variance) if 0 < variance < np.inf else float("nan"),
        max_relative_error=float(np.max(np.abs(error) / measured)),
        huber=float(np.average(penalties, weights=weight)),
    )


SEARCHED = (-8.0, 12.0)
"""Search range for the log ratio of the group variance to the run variance."""


def information_criteria(
    residual: Each,
    slopes: Float[np.ndarray, "runs free"],
    weight: Each,
    group: Int[np.ndarray, " runs"],
    scatter: float,
) -> tuple[float, float]:
    """Return AICc (Hurvich and Tsai 1989; infinite if there are too few runs) and BIC of a fit.

    The likelihood is marginal (Vaida and Blanchard 2005, for questions about new groups): residuals of log loss are
    normal, with a random intercept for each group. The group and run variances are estimated by maximum likelihood and
    count as parameters. If every group is one run, there is a single variance. Without the random intercept, the
    budgets of one model would count as independent runs, which would favor laws that fit the models' random effects.

    One linear step moves the coefficients from the fit to their maximum likelihood, because a robust penalty has a
    different optimum. They stay fixed in directions in which an e-fold moves predictions by less than the scatter.

    Args:
      residual: measured minus predicted log loss.
      slopes: derivatives of predicted log loss in the search coordinates.
      scatter: standard deviation of the residual of a run of weight 1.
    """
    kept = weight > 0
    root = np.sqrt(weight[kept] / weight[kept].mean())
    basis, lengths, _ = np.linalg.svd(root[:, None] * slopes[kept], full_matrices=False)
    # The scatter applies to a run of weight 1.
    basis, off = basis[:, lengths * np.sqrt(weight[kept].mean()) > scatter], root * residual[kept]
    size, together, luck = (sums_by_group(part, group[kept]) for part in (root**2, root * off, root[:, None] * basis))
    n, free = len(off), slopes.shape[1]

    def deviance(shared: float) -> float:
        """Return -2 log likelihood at the best run variance, if the group variance is ``shared`` times as large."""
        lost = shared / (1 + shared * size)
        slope = basis.T @ off - luck.T @ (lost * together)
        step = np.linalg.solve(np.eye(basis.shape[1]) - (luck.T * lost) @ luck, slope)
        left = off @ off - lost @ together**2 - slope @ step
        return n * np.log(max(left / n, 1e-300)) + float(np.sum(np.log1p(shared * size)))

    lowest, k = deviance(0.0), free + 1
    if len(size) < n:
        # The import takes longer than the criteria of most tables, whose groups are single runs.
        from scipy.optimize import fminbound

        log = fminbound(lambda log: deviance(float(np.exp(log))), *SEARCHED)
        lowest, k = min(lowest, deviance(float(np.exp(log)))), free + 2
    aicc = lowest + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")
    return float(aicc), float(lowest + k * np.log(n))
