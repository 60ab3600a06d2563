"""Coordinates in which all coefficients weigh alike at a point: what a search goes on in once it is near an optimum.

In centred coordinates the five-factor law's directions still differ by a factor of 1e4 in how far they move the losses,
and L-BFGS then crawls along its valley: of 200 resamples none ended within 500 steps, and all stayed where they began.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from moejax import minimise
from moejax.fit.identify import slopes_of_log_loss
from moejax.fit.problem import Form

FLATTEST = 1e-6
"""Share of the steepest direction's slope below which a direction is not stretched further."""


@dataclass(frozen=True)
class Turned:
    """A form as a function of where one is from a start, along the principal directions of the losses' slopes."""

    form: Form

    def __call__(self, place: Any, shared: Any, weights: Any) -> Any:
        return self.form(shared["start"] + shared["turn"] @ place, shared["data"], weights)


def minimise_turned(
    form: Form,
    start: Float[np.ndarray, " free"],
    data: Any,
    base: Float[np.ndarray, " runs"],
    weights: Float[np.ndarray, "lanes runs"],
    *,
    tolerance: float,
    max_iterations: int,
) -> minimise.Lanes:
    """Minimise a form from one start for every row of ``weights``; its points are the form's.

    Args:
      base: weights of the runs by which the directions are found.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        slopes = np.asarray(slopes_of_log_loss(form, start, data)[1])
    turn, slopes = np.eye(len(start)), (np.sqrt(base)[:, None] * slopes)[base > 0]
    if np.isfinite(slopes).all() and slopes.any() and len(slopes) >= len(start):
        _, sizes, directions = np.linalg.svd(slopes, full_matrices=False)
        turn = directions.T / np.maximum(sizes, FLATTEST * sizes[0])
    shared = {"start": start, "turn": turn, "data": data}
    nothing = np.zeros((len(weights), len(start)))
    lanes = minimise.minimise_lanes(
        Turned(form), nothing, shared, weights, tolerance=tolerance, max_iterations=max_iterations
    )
    return minimise.Lanes(start + lanes.points @ turn.T, lanes.values, lanes.gradient_norms, lanes.iterations)
