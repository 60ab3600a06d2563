"""Determine which coefficients of a law, and which combinations of them, a table of runs identifies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.fit.search.objective import FitObjective, slopes_of_residuals
from moejax.fit.uncertainty.noise import noise
from moejax.fit.uncertainty.undetermined import directions_of, undetermined
from moejax.float64 import float64
from moejax.laws.design import value_of

NO_EFFECT = 1e-7
"""Change of log loss per e-fold (per unit, for a coefficient of any sign) below which a coefficient has no effect."""
NOT_MOVED = 1e-9
"""Distance from the starting point below which the search did not move a coefficient, so that it is unidentified."""
PARTICIPATES = 0.3
"""Component of a unit direction above which a coefficient is named as part of it."""


@dataclass(frozen=True, kw_only=True)
class Identified:
    """The conditioning and identifiability of a fit at its optimum."""

    condition_number: float
    """Condition number of J'WJ, with J the Jacobian of log loss in the coordinates of the search."""
    unidentified: dict[str, str]
    """Coefficients that the data do not determine, with the reason."""
    sentences: tuple[str, ...]
    """Directions that the table does not determine, as sentences."""
    undetermined: tuple[dict[str, float], ...]
    """Directions along which no prediction of a run changes (``undetermined.directions_of``)."""


def identify(objective: FitObjective, data: Any, weights: Any, point: Any, start: Any | None) -> Identified:
    """Return which coefficients the runs determine at an optimum reached from ``start``."""
    with float64():
        predicted, slopes = (np.asarray(part) for part in slopes_of_log_loss(objective, point, data))
    kept = np.asarray(weights) > 0
    jacobian = np.sqrt(np.asarray(weights)[kept])[:, None] * slopes[kept]
    unidentified = {}
    for i, name in enumerate(objective.free):
        if np.abs(slopes[kept, i]).max() < NO_EFFECT:
            unidentified[name] = "no prediction depends on it where the search ended"
        elif start is not None and abs(point[i] - start[i]) < NOT_MOVED:
            unidentified[name] = "it is where the search started"
    sizes, directions = np.linalg.svd(jacobian, full_matrices=False)[1:]
    flat = undetermined(sizes)
    scatter = noise(predicted - np.log(data["loss"]), np.asarray(weights), len(objective.free))
    # An e-fold along such a direction changes the predictions by less than the residual scatter. If several directions
    # involve the same coefficients, the last and widest one is kept.
    open_ones = {
        _parts(objective, direction): np.inf if still else scatter / max(size, 1e-300)
        for size, direction, still in zip(sizes, directions, flat, strict=True)
        if size < scatter or still
    }
    sentences = [_in_words(parts, spread) for parts, spread in open_ones.items()]
    if sentences or unidentified:
        sentences += [
            f"{name} is the same in all runs, so what depends on it cannot be told from a constant."
            for name in objective.law.inputs
            if np.ptp(np.asarray(value_of(data["design"], name))[kept]) == 0
        ]
    # The singular value of a vanished coefficient may be 1e-200.
    with np.errstate(over="ignore"):
        condition = (
            float((sizes[0] / sizes[-1]) ** 2) if sizes[-1] > 0 and len(sizes) == len(objective.free) else float("inf")
        )
    if len(jacobian) < len(objective.free):
        sentences.append(f"{len(jacobian)} runs cannot set {len(objective.free)} coefficients.")
    return Identified(
        condition_number=condition,
        unidentified=unidentified,
        sentences=tuple(sentences),
        undetermined=directions_of(objective, data, point, directions[flat]),
    )


def _parts(objective: FitObjective, direction: Any) -> tuple[str, ...]:
    """Return the coefficients that take part in a direction."""
    return tuple(name for name, share in zip(objective.free, direction, strict=True) if abs(share) > PARTICIPATES)


def _in_words(parts: Sequence[str], spread: float) -> str:
    width = f"to about a factor e^{spread:.3g}" if spread < 1e6 else "at all"
    if len(parts) == 1:
        return f"{parts[0]} is not determined {width} by this table."
    return f"{', '.join(parts[:-1])} and {parts[-1]} cannot be told apart by this table (not {width})."


def slopes_of_log_loss(objective: FitObjective, point: Any, data: Any) -> tuple[Any, Any]:
    """Return the log prediction of every run, and its Jacobian in the coordinates."""
    # With losses of 1, residuals equal log predictions, so one compiled program serves both.
    return slopes_of_residuals(objective, "log", point, {**data, "loss": np.ones_like(data["loss"])})
