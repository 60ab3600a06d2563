"""Degrees of the IsoFLOP surface, chosen by errors on runs that were kept from the fit (Abnar et al., Appendix B)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_law import Progress
from moejax.fit.isoflop_runs import Budget
from moejax.laws.isoflop_surface import terms

Degrees = tuple[int, int, int]
"""Of log size, of log sparsity, and of their product."""

HIGHEST = 4
FOLDS, SHUFFLES = 10, 3
"""Every run is kept from a fit once per shuffle; several shuffles steady the choice."""
RANK = 1e-10
"""Singular values below this share of the largest are 0: the runs do not set every coefficient."""


@dataclass(frozen=True, kw_only=True)
class DegreeSearch:
    """What cross-validation says about every combination of degrees, the same at every budget."""

    best: Degrees
    """Those of the lowest error, as the paper chooses."""
    error: float
    """Root of its mean squared error on the runs kept from each fit, nats per token."""
    errors: dict[Degrees, float]
    """Of every combination that all folds could determine."""
    tried: int


def search_degrees(budgets: Sequence[Budget], *, seed: int = 0, progress: Progress | None = None) -> DegreeSearch:
    """Cross-validate degrees 0 to 4 of log N, log sparsity and their product, architectures kept whole.

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
        found = [
            _errors(matrix[:, chosen(degrees)], budget, parts)
            for matrix, budget, parts in zip(matrices, budgets, splits, strict=True)
        ]
        if all(one is not None for one in found):
            squares[degrees] = np.concatenate([one for one in found if one is not None])
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
    """Every power up to ``HIGHEST`` that Eq. 8 may have, without the constant."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        found = terms(budget.runs.design, (HIGHEST, HIGHEST, HIGHEST))
        return np.stack([np.asarray(one, np.float64) for one in found[:-1]], axis=-1)


def chosen(degrees: Degrees) -> list[int]:
    """Which of ``columns_of`` a surface of these degrees has."""
    return [part * HIGHEST + power for part, degree in enumerate(degrees) for power in range(degree)]


def least_squares(
    columns: Float[np.ndarray, "runs terms"], losses: Float[np.ndarray, " runs"], weights: Float[np.ndarray, " runs"]
) -> Float[np.ndarray, " coefficients"] | None:
    """Weights of the columns, then the constant; None if these runs do not set all of them."""
    kept = weights > 0
    columns, losses, weights = columns[kept], losses[kept], weights[kept]
    count = columns.shape[1]
    if len(np.unique(columns, axis=0)) <= count:
        return None
    # Centred and scaled: powers of log N from 18 to 24 are nearly parallel as they are.
    middle, mean = np.average(columns, axis=0, weights=weights), np.average(losses, weights=weights)
    spread = np.abs(columns - middle).max(axis=0)
    if not (spread > 0).all():
        return None
    root = np.sqrt(weights)
    scaled = root[:, None] * (columns - middle) / spread
    found, _, rank, _ = np.linalg.lstsq(scaled, root * (losses - mean), rcond=RANK)
    return np.append(found / spread, mean - (found / spread) @ middle) if rank == count else None


def _splits(budget: Budget, seed: int) -> Iterator[np.ndarray]:
    """For every fold of every shuffle, which runs are kept from the fit."""
    groups = np.unique(budget.runs.group)
    for shuffle in range(SHUFFLES):
        order = np.random.default_rng((seed, shuffle)).permutation(groups)
        for fold in range(min(FOLDS, len(groups))):
            yield np.isin(budget.runs.group, order[fold :: min(FOLDS, len(groups))])


def _errors(columns: np.ndarray, budget: Budget, splits: list[np.ndarray]) -> np.ndarray | None:
    """Mean square over shuffles of every run's error while it was kept from the fit; None where one has no answer."""
    runs = budget.runs
    total = np.zeros(len(runs))
    for held_out in splits:
        weights = least_squares(columns, runs.loss, np.where(held_out, 0.0, runs.weight))
        if weights is None:
            return None
        total[held_out] += (columns[held_out] @ weights[:-1] + weights[-1] - runs.loss[held_out]) ** 2
    return total / SHUFFLES
