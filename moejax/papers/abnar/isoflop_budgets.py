"""Sort runs into IsoFLOP budgets, and fit independent parabolas (Abnar et al., Appendix D.4).

A parabola in log size is fitted to the runs of each sparsity and budget.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.polynomial import polynomial

from moejax.errors import UserError
from moejax.fit.runs import Runs, budgets
from moejax.fit.sweeps.budget_losses import LEAST_SIZES
from moejax.float64 import float64
from moejax.papers.isoflop_optima import SHOWN, IsoflopOptimum, Parabola, reach_of, vertex
from moejax.wording import counted

INPUTS = ("params_total", "tokens", "flops", "num_experts", "top_k")
LEAST_SPARSITIES = 3
"""Minimum number of sparsities per budget, which determines the curvature in sparsity."""
LEAST_SIZES_OF_A_CURVE = 4
"""Minimum number of sizes: a parabola has three coefficients, and the fourth size tests it."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The runs of one training budget."""

    flops: float
    """Geometric mean of the runs' FLOPs."""
    runs: Runs
    sparsity: Float[np.ndarray, " runs"]
    """Sparsity S of Abnar et al., rounded so that equal values compare equal."""

    @property
    def size(self) -> Float[np.ndarray, " runs"]:
        """Size N of the surface: total parameters, or active parameters after ``by_active``."""
        return self.runs.design.params_total

    @property
    def levels(self) -> list[float]:
        """Trained sparsities in ascending order."""
        return [float(level) for level in np.unique(self.sparsity[self.runs.weight > 0])]

    def by_active(self) -> Budget:
        """Return the same runs with active parameters as their size (Figures 1b and 2c)."""
        design = dataclasses.replace(self.runs.design, params_total=self.runs.design.params_active)
        return dataclasses.replace(self, runs=dataclasses.replace(self.runs, design=design))


def isoflop_budgets(runs: Runs) -> tuple[list[Budget], tuple[str, ...]]:
    """Return the budgets with enough runs for a surface, in ascending order, and a message about each omitted budget.

    Runs of weight 0 are left out.

    Raises:
      UserError: a field is missing, a sparsity is invalid, the FLOPs form no budgets, or no budget has enough runs.
    """
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise UserError(f"The recipe reads {', '.join(INPUTS)}, but the runs have no {', '.join(missing)}.")
    runs = runs.where(runs.weight > 0)
    sparsity = sparsity_of(runs)
    number, flops = budgets(runs.design.flops)
    kept, left_out = [], []
    for one, spent in enumerate(flops):
        here = number == one
        budget = Budget(flops=float(spent), runs=runs.where(here), sparsity=sparsity[here])
        if fault := _fault(budget):
            left_out.append(f"{spent:.3g} FLOPs: {fault}.")
        else:
            kept.append(budget)
    if not kept:
        raise UserError(
            f"No budget has enough runs for an IsoFLOP surface, which needs runs of equal flops at {LEAST_SPARSITIES} "
            f"sparsities (1 - top_k / num_experts) with {LEAST_SIZES} sizes (params_total) each. "
            + " ".join(first(left_out))
        )
    return kept, tuple(left_out)


def first(sentences: Sequence[str]) -> list[str]:
    """Return the first few sentences, and a sentence with the number of omitted sentences."""
    more = len(sentences) - SHOWN
    return [*sentences[:SHOWN], *([f"And {more} more budgets."] if more > 0 else [])]


def sparsity_of(runs: Runs) -> Float[np.ndarray, " runs"]:
    """Return the sparsity S of Abnar et al. for every run, rounded so that equal values compare equal.

    Raises:
      UserError: a token uses more experts than the model has.
    """
    with float64():
        sparsity = np.round(np.asarray(runs.design.sparsity, np.float64), 5)
    if (wrong := np.flatnonzero((sparsity < 0) | (sparsity >= 1) | ~np.isfinite(sparsity))).size:
        design, first = runs.design, wrong[0]
        raise UserError(
            f"num_experts is {design.num_experts[first]:g} and top_k {design.top_k[first]:g} in {runs.names[first]}, "
            f"but the sparsity 1 - top_k / num_experts must be in [0, 1) ({counted(len(wrong), 'such run')})."
        )
    return sparsity


def _fault(budget: Budget) -> str:
    sizes = [len(np.unique(budget.size[budget.sparsity == level])) for level in budget.levels]
    if (enough := sum(count >= LEAST_SIZES for count in sizes)) < LEAST_SPARSITIES:
        known = f"{_count(len(budget.runs), 'run', 'runs')} with {_count(len(sizes), 'sparsity', 'sparsities')}"
        return f"{known}, {enough} of them with at least {LEAST_SIZES} sizes"
    return ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def best_sizes_by_curves(budget: Budget, level: float = 0.9) -> tuple[IsoflopOptimum, ...]:
    """Return the optimal size N* of each sparsity, from a separate parabola.

    The interval contains the sizes at which the parabola's slope does not differ significantly from 0 (Fieller 1954).
    The noise is estimated from the residuals of all the budget's parabolas. A sparsity with fewer than four sizes has
    no optimum.
    """
    curves = []
    for level_of_it in budget.levels:
        here = budget.sparsity == level_of_it
        if len(np.unique(budget.size[here])) >= LEAST_SIZES_OF_A_CURVE:
            curves.append(_parabola(budget.runs.where(here), budget.size[here], {"sparsity": level_of_it}))
    if not curves:
        return ()
    reach = reach_of(sum(residual for _, residual, _ in curves), sum(freedom for *_, freedom in curves), level)
    return tuple(vertex(budget.flops, curve, reach) for curve, *_ in curves)


def _parabola(runs: Runs, size: Float[np.ndarray, " runs"], held: dict[str, float]) -> tuple[Parabola, float, int]:
    """Return a parabola in log size fitted to runs, its weighted sum of squared residuals, and degrees of freedom."""
    logs, losses, weights = np.log(size), runs.loss, runs.weight
    middle = float(logs.mean())
    matrix = polynomial.polyvander(logs - middle, 2)
    inverse = np.linalg.inv(matrix.T @ (weights[:, None] * matrix))
    coefficients = inverse @ matrix.T @ (weights * losses)
    curve = Parabola(
        held=held,
        middle=middle,
        coefficients=coefficients,
        inverse=inverse,
        logs=(float(logs.min() - middle), float(logs.max() - middle)),
    )
    return curve, float(weights @ (losses - matrix @ coefficients) ** 2), len(logs) - len(coefficients)
