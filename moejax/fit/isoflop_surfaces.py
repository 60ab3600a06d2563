"""One budget's IsoFLOP surface, fitted once to all its runs and again to resamples (Abnar et al., Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.bootstrap import resample
from moejax.fit.isoflop_degrees import Degrees, chosen, columns_of, least_squares
from moejax.fit.isoflop_runs import Budget
from moejax.interval import Interval, interval
from moejax.laws.isoflop_surface import IsoflopSurface


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Loss over size and sparsity at one budget."""

    budget: Budget
    law: IsoflopSurface
    """The fit to every run."""
    resampled: IsoflopSurface
    """Fits to resamples, its coefficients arrays; NaN for a resample that does not set them all."""
    rmse: float
    """On the runs that were fitted, nats per token."""
    held_out_rmse: Interval
    """On the runs that a resample did not draw."""
    correlation: Interval
    """Pearson's, of measured and predicted losses of those runs."""


def fit_surfaces(
    budgets: Sequence[Budget], degrees: Degrees, *, resamples: int = 100, seed: int = 0, level: float = 0.9
) -> tuple[Surface, ...]:
    """The surface of every budget, with ``resamples`` draws of its architectures.

    Raises:
      UserError: a budget's runs do not set every coefficient.
    """
    return tuple(_surface(budget, degrees, resamples, seed + number, level) for number, budget in enumerate(budgets))


def _surface(budget: Budget, degrees: Degrees, resamples: int, seed: int, level: float) -> Surface:
    runs = budget.runs
    columns = columns_of(budget)[:, chosen(degrees)]
    weights = least_squares(columns, runs.loss, runs.weight)
    if weights is None:
        raise UserError(
            f"The {len(runs)} runs at {budget.flops:.3g} FLOPs do not set a surface of degrees {degrees}; "
            f"train more sizes or sparsities, or choose lower degrees."
        )
    found = np.full((resamples, len(weights)), np.nan)
    errors, correlations = np.full(resamples, np.nan), np.full(resamples, np.nan)
    for number, drawn in enumerate(resample(runs, resamples, seed=seed)):
        if (one := least_squares(columns, runs.loss, drawn)) is None:
            continue
        found[number] = one
        out = drawn == 0
        predicted = _predicted(columns[out], one)
        if out.any():
            errors[number] = _rmse(predicted, runs.loss[out], runs.weight[out])
        correlations[number] = pearson(predicted, runs.loss[out])
    return Surface(
        budget=budget,
        law=_law(weights, degrees),
        resampled=_law(found.T, degrees),
        rmse=_rmse(_predicted(columns, weights), runs.loss, runs.weight),
        held_out_rmse=interval(errors, level),
        correlation=interval(correlations, level),
    )


def pearson(predicted: Float[np.ndarray, " runs"], measured: Float[np.ndarray, " runs"]) -> float:
    """Pearson's correlation; NaN of fewer than three runs, or where one side does not vary."""
    if len(measured) < 3 or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return float("nan")
    return float(np.corrcoef(predicted, measured)[0, 1])


def _law(weights: np.ndarray, degrees: Degrees) -> IsoflopSurface:
    """The law of weights in the order of its terms; of arrays, where each weight is one."""
    values = iter(weights)
    size, sparsity, interaction = (tuple(next(values) for _ in range(degree)) for degree in degrees)
    return IsoflopSurface(size=size, sparsity=sparsity, interaction=interaction, offset=next(values))


def _predicted(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return columns @ weights[:-1] + weights[-1]


def _rmse(predicted: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt(np.average((predicted - measured) ** 2, weights=weights)))
