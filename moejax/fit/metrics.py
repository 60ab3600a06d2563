"""How far a law's predictions are from the losses that were measured, and the criteria that weigh this against its
number of coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from moejax.fit.objective import Huber, compiled_outputs, penalties_of
from moejax.fit.runs import SHARES, Runs, sums_by_group
from moejax.float64 import float64
from moejax.laws.law import LOSS, unit_of


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Errors over some runs, each weighed as in the fit. Losses are in nats per token."""

    runs: int
    mae: float
    """Mean absolute error, nats per token."""
    rmse: float
    """Root of the mean squared error, nats per token."""
    rmse_log: float
    """Root of the mean squared error of log loss: about the relative error; NaN if a prediction is not above 0."""
    r_squared: float
    """Share of the losses' variance that is predicted; NaN if the losses do not vary."""
    max_relative_error: float
    """Largest |predicted - measured| / measured."""
    huber: float = float("nan")
    """Mean of Huber's penalty (delta 1e-3) of log loss: what a fit minimises by default, per run."""

    def rmse_of(self, output: str) -> float:
        """The RMSE by which fits to an output are compared."""
        return getattr(self, rmse_named(output))


def by_factors(output: str) -> bool:
    """Whether runs differ by factors in an output, and errors of it are of logarithms: of learning rates and batches,
    not of losses and shares of answers."""
    return output not in {*LOSS, *SHARES}


def rmse_named(output: str) -> str:
    """Which of ``Metrics`` is ``Metrics.rmse_of`` an output."""
    return "rmse_log" if by_factors(output) else "rmse"


def unit_of_errors(output: str) -> str:
    """What ``Metrics.rmse_of`` is in."""
    return f"log {output.replace('_', ' ')}" if by_factors(output) else unit_of(output)


def predict(law: Any, runs: Runs, output: str = "loss") -> Float[np.ndarray, " runs"]:
    """What a law gives every run, in float64."""
    with float64():
        return np.asarray(compiled_outputs(law, runs.design, output), np.float64)


def metrics(law: Any, runs: Runs, output: str = "loss") -> Metrics:
    """Errors of a law on the runs whose weight is not 0."""
    kept = runs.weight > 0
    return errors(predict(law, runs, output)[kept], runs.loss[kept], runs.weight[kept])


Each = Float[np.ndarray, " runs"]


def errors(predicted: Each, measured: Each, weight: Each) -> Metrics:
    """Errors of predictions, however they came about."""
    error = predicted - measured
    with np.errstate(over="ignore"):
        # The square of a loss that is no loss, which is said beside the fit.
        square = np.average(error**2, weights=weight)
        variance = np.average((measured - np.average(measured, weights=weight)) ** 2, weights=weight)
    with float64():
        penalties = np.asarray(penalties_of(Huber(), predicted, measured))
    with np.errstate(divide="ignore", invalid="ignore"):
        # What is not above 0 has no logarithm, and so no relative error.
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
"""Logarithms of a group's variance over that of its runs between which the likelihood is searched."""


def information_criteria(
    residual: Each,
    slopes: Float[np.ndarray, "runs free"],
    weight: Each,
    group: Int[np.ndarray, " runs"],
    scatter: float,
) -> tuple[float, float]:
    """AICc (Hurvich and Tsai 1989; infinite if runs are too few) and BIC of a fit.

    The likelihood is marginal (Vaida and Blanchard 2005, for questions about new groups): residuals of log loss are
    normal, with a random intercept for each group. Both variances, of groups and of runs, are those that make the
    residuals likeliest, and count as parameters; where every group is one run there is one variance. Counted as
    independent, the budgets of a model would multiply the evidence for whatever describes the models' luck.

    Coefficients are taken at their likeliest too, linear around the fit: a robust penalty ends beside it, by as much as
    laws may differ. They stay where they are in directions that a change by an e-fold does not move out of the scatter.

    Args:
      residual: of log loss, measured less predicted.
      slopes: of predicted log loss in the coordinates that were searched.
      scatter: standard deviation of the residual of a run of weight 1.
    """
    kept = weight > 0
    root = np.sqrt(weight[kept] / weight[kept].mean())
    basis, lengths, _ = np.linalg.svd(root[:, None] * slopes[kept], full_matrices=False)
    # The scatter is that of a run of weight 1.
    basis, off = basis[:, lengths * np.sqrt(weight[kept].mean()) > scatter], root * residual[kept]
    size, together, luck = (sums_by_group(part, group[kept]) for part in (root**2, root * off, root[:, None] * basis))
    n, free = len(off), slopes.shape[1]

    def deviance(shared: float) -> float:
        """-2 log likelihood at the likeliest variance of runs, ``shared`` times which is that of groups."""
        lost = shared / (1 + shared * size)
        slope = basis.T @ off - luck.T @ (lost * together)
        step = np.linalg.solve(np.eye(basis.shape[1]) - (luck.T * lost) @ luck, slope)
        left = off @ off - lost @ together**2 - slope @ step
        return n * np.log(max(left / n, 1e-300)) + float(np.sum(np.log1p(shared * size)))

    lowest, k = deviance(0.0), free + 1
    if len(size) < n:
        # Takes longer to import than the criteria of most tables, whose groups are single runs.
        from scipy.optimize import fminbound

        log = fminbound(lambda log: deviance(float(np.exp(log))), *SEARCHED)
        lowest, k = min(lowest, deviance(float(np.exp(log)))), free + 2
    aicc = lowest + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")
    return float(aicc), float(lowest + k * np.log(n))
