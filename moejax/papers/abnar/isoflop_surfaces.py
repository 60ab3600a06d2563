"""Fit IsoFLOP surfaces (Abnar et al., Appendix B): cross-validate degrees, fit and resample each budget, and find
optima.

Searches stay inside the convex hull of the trained (log N, log 1/(1-S)), because a polynomial does not extrapolate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.search.fit_law import Progress
from moejax.fit.sweeps.budget_losses import end
from moejax.fit.uncertainty.bootstrap import resample
from moejax.float64 import float64
from moejax.interval import Interval, interval
from moejax.laws.mixtures.isoflop_surface import IsoflopSurface, best_active_experts_share, best_params_total, terms
from moejax.papers.abnar.isoflop_budgets import Budget
from moejax.papers.isoflop_optima import FLAT, SIZE_ENDS, IsoflopOptimum, optimum_of

Degrees = tuple[int, int, int]
"""Degrees of log size, of log sparsity, and of their product."""

HIGHEST = 4
FOLDS, SHUFFLES = 10, 3
"""Folds and shuffles of the cross-validation. Every run is held out once per shuffle; several shuffles stabilise the
choice."""
RANK = 1e-10
"""Singular values below this fraction of the largest count as 0; the runs then do not determine all coefficients."""


@dataclass(frozen=True, kw_only=True)
class DegreeSearch:
    """Cross-validation errors of every combination of degrees, common to all budgets."""

    best: Degrees
    """Degrees with the lowest error, the paper's criterion."""
    error: float
    """Root mean squared error of ``best`` on held-out runs, in nats per token."""
    errors: dict[Degrees, float]
    """Error of every combination whose coefficients all folds determine."""
    tried: int


def search_degrees(budgets: Sequence[Budget], *, seed: int = 0, progress: Progress | None = None) -> DegreeSearch:
    """Cross-validate degrees 0 to 4 of log N, log sparsity and their product. Runs of one architecture share a fold.

    Raises:
      UserError: the runs of some budget are too few for every combination.
    """
    report = progress or (lambda *_: None)
    powers = range(HIGHEST + 1)
    every = list(itertools.product(powers, powers, powers))
    squares: dict[Degrees, np.ndarray] = {}
    matrices = [columns_of(budget) for budget in budgets]
    splits = [list(_splits(budget, seed)) for budget in budgets]
    for number, degrees in enumerate(every):
        report("degrees", number, len(every))
        errors = [
            _errors(matrix[:, chosen(degrees)], budget, parts)
            for matrix, budget, parts in zip(matrices, budgets, splits, strict=True)
        ]
        if all(one is not None for one in errors):
            squares[degrees] = np.concatenate([one for one in errors if one is not None])
    if not any(sum(degrees) for degrees in squares):
        counts = ", ".join(f"{len(b.runs)} at {b.flops:.3g}" for b in budgets)
        raise UserError(f"The runs are too few to cross-validate any surface ({counts} FLOPs); train more sizes.")
    weight = np.concatenate([budget.runs.weight for budget in budgets])
    means = {degrees: float(np.average(one, weights=weight)) for degrees, one in squares.items()}
    best = min(means, key=lambda degrees: (means[degrees], sum(degrees)))
    return DegreeSearch(
        best=best,
        error=float(np.sqrt(means[best])),
        errors={degrees: float(np.sqrt(mean)) for degrees, mean in means.items()},
        tried=len(every),
    )


def columns_of(budget: Budget) -> Float[np.ndarray, "runs terms"]:
    """Return every power of Eq. 8 up to ``HIGHEST``, without the constant."""
    with float64():
        every_term = terms(budget.runs.design, (HIGHEST, HIGHEST, HIGHEST))
        return np.stack([np.asarray(one, np.float64) for one in every_term[:-1]], axis=-1)


def chosen(degrees: Degrees) -> list[int]:
    """Return the indices into ``columns_of`` for a surface of these degrees."""
    return [part * HIGHEST + power for part, degree in enumerate(degrees) for power in range(degree)]


def least_squares(
    columns: Float[np.ndarray, "runs terms"], losses: Float[np.ndarray, " runs"], weights: Float[np.ndarray, " runs"]
) -> Float[np.ndarray, " coefficients"] | None:
    """Return the coefficients of the columns, followed by the constant; None if the runs do not determine all
    coefficients."""
    kept = weights > 0
    columns, losses, weights = columns[kept], losses[kept], weights[kept]
    count = columns.shape[1]
    if len(np.unique(columns, axis=0)) <= count:
        return None
    # Center and scale, because powers of log N are nearly collinear (log N ranges from 18 to 24).
    middle, mean = np.average(columns, axis=0, weights=weights), np.average(losses, weights=weights)
    spread = np.abs(columns - middle).max(axis=0)
    if not (spread > 0).all():
        return None
    root = np.sqrt(weights)
    scaled = root[:, None] * (columns - middle) / spread
    solution, _, rank, _ = np.linalg.lstsq(scaled, root * (losses - mean), rcond=RANK)
    return np.append(solution / spread, mean - (solution / spread) @ middle) if rank == count else None


def _splits(budget: Budget, seed: int) -> Iterator[np.ndarray]:
    """Yield the mask of held-out runs for every fold of every shuffle."""
    groups = np.unique(budget.runs.group)
    for shuffle in range(SHUFFLES):
        order = np.random.default_rng((seed, shuffle)).permutation(groups)
        for fold in range(min(FOLDS, len(groups))):
            yield np.isin(budget.runs.group, order[fold :: min(FOLDS, len(groups))])


def _errors(columns: np.ndarray, budget: Budget, splits: list[np.ndarray]) -> np.ndarray | None:
    """Return every run's squared held-out error, averaged over shuffles; None if a fold does not determine the
    coefficients."""
    runs = budget.runs
    total = np.zeros(len(runs))
    for held_out in splits:
        weights = least_squares(columns, runs.loss, np.where(held_out, 0.0, runs.weight))
        if weights is None:
            return None
        total[held_out] += (columns[held_out] @ weights[:-1] + weights[-1] - runs.loss[held_out]) ** 2
    return total / SHUFFLES


@dataclass(frozen=True, kw_only=True)
class Surface:
    """A loss surface over size and sparsity at one budget."""

    budget: Budget
    law: IsoflopSurface
    """Fit to all runs."""
    resampled: IsoflopSurface
    """Fits to resamples, with arrays as coefficients; NaN for resamples that do not determine all coefficients."""
    rmse: float
    """RMSE on the fitted runs, in nats per token."""
    held_out_rmse: Interval
    """RMSE on the runs that a resample did not draw."""
    correlation: Interval
    """Pearson correlation of measured and predicted losses on the runs that a resample did not draw."""


def fit_surfaces(
    budgets: Sequence[Budget], degrees: Degrees, *, resamples: int = 100, seed: int = 0, level: float = 0.9
) -> tuple[Surface, ...]:
    """Fit the surface of every budget, with ``resamples`` draws of its architectures.

    Raises:
      UserError: a budget's runs do not determine every coefficient.
    """
    return tuple(_surface(budget, degrees, resamples, seed + number, level) for number, budget in enumerate(budgets))


def _surface(budget: Budget, degrees: Degrees, resamples: int, seed: int, level: float) -> Surface:
    runs = budget.runs
    columns = columns_of(budget)[:, chosen(degrees)]
    weights = least_squares(columns, runs.loss, runs.weight)
    if weights is None:
        raise UserError(
            f"The {len(runs)} runs at {budget.flops:.3g} FLOPs do not determine a surface of degrees {degrees}; "
            f"train more sizes or sparsities, or choose lower degrees."
        )
    resampled = np.full((resamples, len(weights)), np.nan)
    errors, correlations = np.full(resamples, np.nan), np.full(resamples, np.nan)
    for number, drawn in enumerate(resample(runs, resamples, seed=seed)):
        if (one := least_squares(columns, runs.loss, drawn)) is None:
            continue
        resampled[number] = one
        out = drawn == 0
        predicted = _predicted(columns[out], one)
        if out.any():
            errors[number] = _rmse(predicted, runs.loss[out], runs.weight[out])
        correlations[number] = pearson(predicted, runs.loss[out])
    return Surface(
        budget=budget,
        law=_law(weights, degrees),
        resampled=_law(resampled.T, degrees),
        rmse=_rmse(_predicted(columns, weights), runs.loss, runs.weight),
        held_out_rmse=interval(errors, level),
        correlation=interval(correlations, level),
    )


def pearson(predicted: Float[np.ndarray, " runs"], measured: Float[np.ndarray, " runs"]) -> float:
    """Return the Pearson correlation; NaN for fewer than three runs or if either input is constant."""
    if len(measured) < 3 or np.ptp(predicted) == 0 or np.ptp(measured) == 0:
        return float("nan")
    return float(np.corrcoef(predicted, measured)[0, 1])


def _law(weights: np.ndarray, degrees: Degrees) -> IsoflopSurface:
    """Return the law with these coefficients, in the order of its terms. A coefficient may be an array."""
    values = iter(weights)
    size, sparsity, interaction = (tuple(next(values) for _ in range(degree)) for degree in degrees)
    return IsoflopSurface(size=size, sparsity=sparsity, interaction=interaction, offset=next(values))


def _predicted(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return columns @ weights[:-1] + weights[-1]


def _rmse(predicted: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> float:
    return float(np.sqrt(np.average((predicted - measured) ** 2, weights=weights)))


JOINT_SPARSITIES = 129
"""Number of grid points in log 1/(1-S) in the search for the joint optimum."""
SHARE_ENDS: dict[int, str] = {
    -1: "the loss falls up to a sparsity of {high:.4g}, the highest reached",
    1: "the loss rises from a sparsity of {low:.4g} on, the lowest reached",
    FLAT: "the surface does not vary between sparsities of {low:.4g} and {high:.4g}",
}
"""Reasons for a missing best sparsity, by the bound of the share 1-S that has the lowest loss."""


def best_sizes(surface: Surface, level: float = 0.9) -> tuple[IsoflopOptimum, ...]:
    """Return N* at every trained sparsity (Eq. 3)."""
    levels = np.array(surface.budget.levels)
    size, sparsity = _points(surface)
    low, high = _reach(sparsity, size, -np.log1p(-levels))
    logs, losses, ends = _lowest(best_params_total, surface, 1 - levels, low, high)
    return tuple(
        optimum_of(
            surface.budget.flops,
            {"sparsity": float(at)},
            np.exp(logs[:, i]),
            losses[:, i],
            ends[:, i] == 0,
            SIZE_ENDS.get(int(ends[0, i]), "").format(low=np.exp(low[i]), high=np.exp(high[i])),
            level,
        )
        for i, at in enumerate(levels)
    )


def best_sparsities(surface: Surface, sizes: Sequence[float], level: float = 0.9) -> tuple[IsoflopOptimum, ...]:
    """Return S* at each of these sizes that is within the trained range (Eq. 4)."""
    size, sparsity = _points(surface)
    held = np.array([n for n in sizes if size.min() < np.log(n) < size.max()])
    if not len(held):
        return ()
    lowest, highest = _reach(size, sparsity, np.log(held))
    logs, losses, ends = _lowest(best_active_experts_share, surface, held, -highest, -lowest)
    return tuple(
        optimum_of(
            surface.budget.flops,
            {"params_total": float(at)},
            -np.expm1(logs[:, i]),
            losses[:, i],
            ends[:, i] == 0,
            SHARE_ENDS.get(int(ends[0, i]), "").format(low=-np.expm1(-lowest[i]), high=-np.expm1(-highest[i])),
            level,
        )
        for i, at in enumerate(held)
    )


def best_pair(surface: Surface, level: float = 0.9) -> tuple[IsoflopOptimum, IsoflopOptimum]:
    """Return N* and S* together (Eq. 2); neither has a value if either is at an end of the trained range."""
    size, sparsity = _points(surface)
    grid = np.linspace(sparsity.min(), sparsity.max(), JOINT_SPARSITIES)
    low, high = _reach(sparsity, size, grid)
    logs, losses, ends = _lowest(best_params_total, surface, np.exp(-grid), low, high)
    best = np.argmin(np.where(np.isfinite(losses), losses, np.inf), axis=1)
    rows = np.arange(len(best))
    logs, losses, size_ends = logs[rows, best], losses[rows, best], ends[rows, best]
    share_ends = end(-grid[best], -grid[-1], -grid[0])
    why = SHARE_ENDS.get(int(share_ends[0]), "").format(low=-np.expm1(-grid[0]), high=-np.expm1(-grid[-1]))
    why = why or SIZE_ENDS.get(int(size_ends[0]), "").format(low=np.exp(low[best[0]]), high=np.exp(high[best[0]]))
    inside = (share_ends == 0) & (size_ends == 0)
    return (
        optimum_of(surface.budget.flops, {}, np.exp(logs), losses, inside, why, level),
        optimum_of(surface.budget.flops, {}, -np.expm1(-grid[best]), losses, inside, why, level),
    )


def round_sizes(low: float, high: float) -> list[float]:
    """Return all sizes between two bounds that are 1, 2 or 5 times a power of ten."""
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [size for size in every if low <= size <= high]


def _points(surface: Surface) -> tuple[np.ndarray, np.ndarray]:
    """Return log N and log 1/(1-S) of the budget's runs."""
    return np.log(surface.budget.size), -np.log1p(-surface.budget.sparsity)


def _reach(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper bound of y in the points' convex hull at each x of ``at``."""
    bounds = []
    for one in at:
        # The hull's bounds at an x are on segments between two points on either side of x.
        left, right = np.nonzero((x[:, None] <= one) & (x[None, :] >= one))
        width = x[right] - x[left]
        share = np.where(width > 0, (one - x[left]) / np.where(width > 0, width, 1), 0)
        reached = y[left] + share * (y[right] - y[left])
        bounds.append((reached.min(), reached.max()))
    low, high = np.array(bounds).T
    return low, high


def _lowest(
    search: Callable[..., Any], surface: Surface, at: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the minimum's log position, its loss, and its bound (0: inside) or ``FLAT``; one row per fit, starting
    with the fit to all runs."""
    with float64():
        laws = jax.tree.map(lambda one, many: np.concatenate([[one], many]), surface.law, surface.resampled)
        lowest, losses = (np.asarray(one) for one in _vmapped(search, laws, at, np.exp(low), np.exp(high)))
        # With equal bounds, the search returns the loss at that point.
        edges = [np.asarray(_vmapped(search, laws, at, np.exp(one), np.exp(one))[1]) for one in (low, high)]
    logs = np.log(lowest)
    varies = np.maximum(*edges) - losses > ROUNDING * np.abs(losses)
    return logs, losses, np.where(varies | ~np.isfinite(losses), end(logs, low, high), FLAT)


ROUNDING = 1e-9
"""Relative variation of the loss below which a surface is flat."""


@functools.partial(jax.jit, static_argnums=0)
def _vmapped(search: Callable[..., Any], laws: Any, at: Any, low: Any, high: Any) -> Any:
    return jax.vmap(lambda law: jax.vmap(functools.partial(search, law))(at, low, high))(
        jax.tree.map(jnp.asarray, laws)
    )
