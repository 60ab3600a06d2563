"""Minimisation in coordinates in which all coefficients weigh alike: what a search goes on in near an optimum.

In centred coordinates the five-factor law's directions still differ by a factor of 1e4 in how far they move the losses,
and L-BFGS then crawls along its valley: of 200 resamples none ended within 500 steps, and all stayed where they began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax import minimise
from moejax.fit.identify import slopes_of_log_loss
from moejax.fit.objective import FitObjective
from moejax.float64 import float64

FLATTEST = 1e-6
"""Share of the steepest direction's slope below which a direction is not stretched further."""


@dataclass(frozen=True)
class Reparametrised:
    """A fit's objective as a function of the offset from a start, along principal directions of the losses' slopes."""

    objective: FitObjective

    def __call__(self, offset: Any, shared: Any, weights: Any) -> Any:
        return self.objective(shared["start"] + shared["rotation"] @ offset, shared["data"], weights)


def unchanged(data: Any, free: int) -> dict[str, Any]:
    """What makes ``Reparametrised`` its objective, in the coordinates as they are."""
    return {"start": np.zeros(free), "rotation": np.eye(free), "data": data}


def minimise_reparametrised(
    objective: FitObjective,
    start: Float[np.ndarray, " free"],
    data: Any,
    base: Float[np.ndarray, " runs"],
    weights: Float[np.ndarray, "lanes runs"],
    *,
    tolerance: float,
    max_iterations: int,
) -> minimise.Lanes:
    """Minimise an objective from one start for every row of ``weights``; its points are the objective's.

    Args:
      base: weights of the runs by which the directions are found.
    """
    with float64():
        slopes = np.asarray(slopes_of_log_loss(objective, start, data)[1])
    rotation, slopes = np.eye(len(start)), (np.sqrt(base)[:, None] * slopes)[base > 0]
    if np.isfinite(slopes).all() and slopes.any() and len(slopes) >= len(start):
        _, sizes, directions = np.linalg.svd(slopes, full_matrices=False)
        rotation = directions.T / np.maximum(sizes, FLATTEST * sizes[0])
    shared = {"start": start, "rotation": rotation, "data": data}
    nothing = np.zeros((len(weights), len(start)))
    lanes = minimise.minimise_lanes(
        Reparametrised(objective), nothing, shared, weights, tolerance=tolerance, max_iterations=max_iterations
    )
    return minimise.Lanes(start + lanes.points @ rotation.T, lanes.values, lanes.gradient_norms, lanes.iterations)
