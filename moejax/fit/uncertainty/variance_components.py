"""Estimate the variance of runs around a fitted law: residual noise, and a random effect shared by each group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, sums_by_group
from moejax.fit.uncertainty.derivatives import derivatives
from moejax.fit.uncertainty.intervals import left_by
from moejax.fit.uncertainty.noise import CLIPPED
from moejax.fit.uncertainty.undetermined import undetermined

MOST_SHARED = 0.99
"""Upper limit of the intraclass correlation: the runs of a group are never a single run."""


@dataclass(frozen=True, kw_only=True)
class VarianceComponents:
    """Normal noise of log loss with a random intercept for each group."""

    noise: float
    """Standard deviation of a run's log loss, from noise and random intercept."""
    shared: float | None
    """Intraclass correlation, the group's share of the variance.

    None if the runs do not determine it: no group has two runs, or there are no more groups than coefficients.
    """


def variance_components(result: FitResult, runs: Runs) -> VarianceComponents:
    """Estimate the variance of runs around their fitted law, from two sums of squares of residuals.

    Henderson's third method (1953): the sum over all runs and that of the group means are set to their expectations
    after a least-squares fit. For a robust penalty the residual is its psi divided by the mean stiffness. The variance
    then matches the standard errors of the coefficients. Residuals are clipped as in ``noise``.

    Raises:
      UserError: the runs are not those of the fit.
    """
    at = derivatives(result, runs)
    kept = at.weight > 0
    root = np.sqrt(at.weight[kept])
    residual = at.psi[kept] / np.average(at.stiffness[kept], weights=at.weight[kept])
    if result.penalty.residual == "nats":
        residual = residual / runs.loss[kept]
    residual = root * np.clip(residual, -CLIPPED * result.scatter, CLIPPED * result.scatter)
    basis, size, _ = np.linalg.svd(root[:, None] * at.jacobian[kept], full_matrices=False)
    basis = basis[:, ~undetermined(size)]
    weight, together, taken = (
        sums_by_group(part, runs.group[kept]) for part in (root**2, root * residual, root[:, None] * basis)
    )
    total, between = residual @ residual, np.sum(together**2 / weight)
    # Residual maker for the intercepts, M = diag(weight) - taken·takenᵀ: its diagonal, and the squares of its columns.
    lost = np.sum(taken**2, axis=1)
    met = weight - lost
    squares = met**2 - lost**2 + np.einsum("gf,fh,gh->g", taken, taken.T @ taken, taken)
    # Expected sums of squares per variance of runs and of groups.
    degrees_of_freedom = left_by(len(residual), basis.shape[1])
    expected = np.array([[degrees_of_freedom, met.sum()], [np.sum(met / weight), np.sum(squares / weight)]])
    shared = None
    if basis.shape[1] < len(weight) < len(residual):
        own, groups = np.linalg.solve(expected, [total, between])
        shared = float(np.clip(groups / max(own + groups, 1e-300), 0.0, MOST_SHARED))
    # The total variance follows from its sum of squares at that share.
    variance = total / np.dot([1 - (shared or 0.0), shared or 0.0], expected[0])
    return VarianceComponents(noise=float(np.sqrt(variance)), shared=shared)
