"""Akaike's and Schwarz's criteria of a fit whose runs share luck by groups."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

SEARCHED = (-8.0, 12.0)
"""Logarithms of a group's variance over that of its runs between which the likelihood is searched."""

Each = Float[np.ndarray, " runs"]


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
      scatter: standard deviation of the residuals.
    """
    kept = weight > 0
    root = np.sqrt(weight[kept] / weight[kept].mean())
    basis, lengths, _ = np.linalg.svd(root[:, None] * slopes[kept], full_matrices=False)
    basis, off = basis[:, lengths > scatter], root * residual[kept]
    intercepts = root[:, None] * (group[kept][:, None] == np.unique(group[kept]))
    size, together, luck = np.sum(intercepts**2, axis=0), intercepts.T @ off, intercepts.T @ basis
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
