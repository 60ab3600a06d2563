"""Akaike's and Schwarz's criteria of a fit whose runs share luck by groups."""

from __future__ import annotations

import numpy as np
import scipy.optimize
from jaxtyping import Float, Int

SEARCHED = (-8.0, 12.0)
"""Logarithms of a group's variance over that of its runs between which the likelihood is searched."""

Each = Float[np.ndarray, " runs"]


def information_criteria(
    residual: Each, weight: Each, group: Int[np.ndarray, " runs"], free: int
) -> tuple[float, float]:
    """AICc (Hurvich and Tsai 1989; infinite if runs are too few) and BIC of a fit of ``free`` coefficients.

    The likelihood is marginal (Vaida and Blanchard 2005, for questions about new groups): residuals of log loss are
    normal, with a random intercept for each group. Both variances, of groups and of runs, are those that make the
    residuals likeliest, and count as parameters; where every group is one run there is one variance. Counted as
    independent, the budgets of a model would multiply the evidence for whatever describes the models' luck.
    """
    kept = weight > 0
    root = np.sqrt(weight[kept] / weight[kept].mean())
    labels = np.unique(group[kept], return_inverse=True)[1]
    size, together = np.bincount(labels, root**2), np.bincount(labels, root**2 * residual[kept]) ** 2
    n, square = len(labels), float(np.sum((root * residual[kept]) ** 2))

    def deviance(shared: float) -> float:
        """-2 log likelihood at the likeliest variance of runs, ``shared`` times which is that of groups."""
        left = square - float(np.sum(shared / (1 + shared * size) * together))
        return n * np.log(max(left / n, 1e-300)) + float(np.sum(np.log1p(shared * size)))

    lowest, k = deviance(0.0), free + 1
    if len(size) < n:
        log = scipy.optimize.fminbound(lambda log: deviance(float(np.exp(log))), *SEARCHED)
        lowest, k = min(lowest, deviance(float(np.exp(log)))), free + 2
    aicc = lowest + 2 * k + 2 * k * (k + 1) / (n - k - 1) if n > k + 1 else float("inf")
    return float(aicc), float(lowest + k * np.log(n))
