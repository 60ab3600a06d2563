"""Fit the IsoFLOP parabolas of one kind of model together, so that unequal FLOPs in a budget move no vertex.

The loss of a run with fewer FLOPs than the rest of its budget is higher for that reason alone. At the best size, the
slope of the loss in log FLOPs equals the slope of the lowest loss (the envelope theorem). The lowest losses of the
budgets therefore give that slope, and one linear regression gives all parabolas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.polynomial import polynomial

from moejax.fit.runs import Runs
from moejax.fit.sweeps.isoflop_curves import Parabola

GROWTH = 0.5
"""Exponent of the best size in FLOPs, by which a run's size is moved to the FLOPs of its budget. Within a budget, its
error is small."""
ROUNDS = 5
"""Number of times that the centre of every parabola moves to its vertex."""
DEGREE = 2
"""Maximum degree of the polynomial of log FLOPs through the lowest losses of the budgets."""


@dataclass(frozen=True, kw_only=True)
class JointParabolas:
    """The parabolas of one kind of model, one per budget."""

    curves: tuple[Parabola, ...]
    residual: float
    """Weighted sum of squared residuals of all parabolas."""
    degrees_of_freedom: int
    """Runs minus coefficients."""
    slope_is_known: bool
    """False if fewer than two budgets have a vertex; unequal FLOPs in a budget are ignored then."""


def joint_parabolas(
    runs: Runs,
    size: Float[np.ndarray, " runs"],
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    held: dict[str, float],
) -> JointParabolas:
    """Fit a parabola in log size at every budget, each with at least three sizes.

    Args:
      budget: budget of every run, as an index of ``flops``.
      flops: FLOPs at which the parabolas are wanted.
      held: quantities that the runs have in common, by name.
    """
    count, logs, spent = len(flops), np.log(size), np.log(flops)
    more = np.log(runs.design.flops) - spent[budget]
    moved = logs - GROWTH * more
    rows = [np.flatnonzero(budget == one) for one in range(count)]
    least, most = (np.array([of(logs[here]) for here in rows]) for of in (np.min, np.max))
    own = np.eye(count)[budget]

    def solve(centre: np.ndarray, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the matrix, the inverse of the normal matrix, and the coefficients, a row per power of size."""
        away = (moved - centre[budget])[:, None]
        level = own + more[:, None] * _slopes(spent, inside)[budget]
        matrix = np.hstack([level, own * away, own * away**2])
        inverse = np.linalg.pinv(matrix.T @ (runs.weight[:, None] * matrix), hermitian=True)
        return matrix, inverse, (inverse @ matrix.T @ (runs.weight * runs.loss)).reshape(3, count)

    centre, inside = np.array([logs[here[np.argmin(runs.loss[here])]] for here in rows]), np.ones(count, bool)
    for _ in range(ROUNDS):
        _, slope, curvature = solve(centre, inside)[2]
        vertex = centre - slope / np.where(curvature > 0, 2 * curvature, np.nan)
        inside = (least < vertex) & (vertex < most)
        centre = np.where(inside, vertex, centre)
    matrix, inverse, coefficients = solve(centre, inside)
    covariances = inverse.reshape(3, count, 3, count)
    return JointParabolas(
        curves=tuple(
            Parabola(
                held=held,
                middle=float(centre[one]),
                coefficients=coefficients[:, one],
                inverse=covariances[:, one, :, one],
                logs=(float(least[one] - centre[one]), float(most[one] - centre[one])),
            )
            for one in range(count)
        ),
        residual=float(runs.weight @ (runs.loss - matrix @ coefficients.ravel()) ** 2),
        degrees_of_freedom=len(runs) - 3 * count,
        slope_is_known=bool(inside.sum() > 1),
    )


def _slopes(spent: Float[np.ndarray, " budgets"], inside: Bool[np.ndarray, " budgets"]) -> np.ndarray:
    """Return the matrix from the lowest losses of the budgets to their slopes in log FLOPs; 0 if they are unknown."""
    slopes = np.zeros((len(spent), len(spent)))
    degree = min(DEGREE, int(inside.sum()) - 1)
    if degree > 0:
        x = spent - spent.mean()
        through = np.linalg.pinv(polynomial.polyvander(x[inside], degree))
        slopes[:, inside] = polynomial.polyvander(x, degree - 1) @ (np.arange(1, degree + 1)[:, None] * through[1:])
    return slopes
