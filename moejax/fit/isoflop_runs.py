"""Runs sorted into training budgets, each with several sparsities and sizes: what an IsoFLOP surface is fitted to."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from moejax.fit.budgets import budgets
from moejax.fit.runs import Runs

INPUTS = ("params_total", "tokens", "flops", "num_experts", "top_k")
WIDEST = 1.25
"""Runs at one budget differ by no more than this factor in FLOPs."""
LEAST_SIZES, LEAST_SPARSITIES = 4, 3
"""A parabola has three coefficients, so a fourth size tests it; sparsities bend the surface from the third on."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The runs that spent one budget."""

    flops: float
    """Geometric mean of what they spent."""
    runs: Runs
    sparsity: Float[np.ndarray, " runs"]
    """Abnar's S, rounded so that equal ones are equal."""

    @property
    def size(self) -> Float[np.ndarray, " runs"]:
        """What the surface's N is: total parameters, or active ones after ``by_active``."""
        return self.runs.design.params_total

    @property
    def levels(self) -> list[float]:
        """The sparsities that were trained, from the smallest."""
        return [float(level) for level in np.unique(self.sparsity[self.runs.weight > 0])]

    def by_active(self) -> Budget:
        """The same runs with active parameters as their size (Figures 1b and 2c)."""
        design = dataclasses.replace(self.runs.design, params_total=self.runs.design.params_active)
        return dataclasses.replace(self, runs=dataclasses.replace(self.runs, design=design))


def isoflop_budgets(runs: Runs) -> tuple[list[Budget], tuple[str, ...]]:
    """The budgets that carry a surface, from the smallest, and a sentence about each that does not.

    FLOPs that follow each other within 10 % are one budget. Runs of weight 0 are left out.

    Raises:
      ValueError: a field is missing, a sparsity is none, the FLOPs form no budgets, or no budget carries a surface.
    """
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise ValueError(f"The recipe reads {', '.join(INPUTS)}, and the runs have no {', '.join(missing)}.")
    runs = runs.where(runs.weight > 0)
    sparsity = sparsity_of(runs)
    number, flops = budgets(runs.design.flops)
    found, left_out = [], []
    for one, spent in enumerate(flops):
        here = number == one
        budget = Budget(flops=float(spent), runs=runs.where(here), sparsity=sparsity[here])
        if fault := _fault(budget):
            left_out.append(f"{spent:.3g} FLOPs: {fault}.")
        else:
            found.append(budget)
    if not found:
        raise ValueError(
            f"No budget carries an IsoFLOP surface, which needs runs of equal flops with {LEAST_SPARSITIES} "
            f"sparsities (1 - top_k / num_experts) and {LEAST_SIZES} sizes (params_total) among them. "
            + " ".join(left_out[:5])
            + (f" And {len(left_out) - 5} more." if len(left_out) > 5 else "")
        )
    return found, tuple(left_out)


def sparsity_of(runs: Runs) -> Float[np.ndarray, " runs"]:
    """Abnar's S of every run, rounded so that equal ones are equal.

    Raises:
      ValueError: more experts serve a token than there are.
    """
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        sparsity = np.round(np.asarray(runs.design.sparsity, np.float64), 5)
    if (wrong := np.flatnonzero((sparsity < 0) | (sparsity >= 1) | ~np.isfinite(sparsity))).size:
        design, first = runs.design, wrong[0]
        raise ValueError(
            f"num_experts is {design.num_experts[first]:g} and top_k {design.top_k[first]:g} in run {first + 1}: a "
            f"sparsity 1 - top_k / num_experts lies from 0 to below 1. It does not in {len(wrong)} runs."
        )
    return sparsity


def _fault(budget: Budget) -> str:
    """Why a budget carries no surface; empty if it does."""
    spent = budget.runs.design.flops
    if spent.max() > WIDEST * spent.min():
        return (
            f"{len(spent)} runs follow each other from {spent.min():.3g} to {spent.max():.3g} without a gap of 10 %, "
            f"so they share no budget; keep the runs of some budgets with --where, or map flops to the intended ones"
        )
    sizes, levels = len(np.unique(budget.size)), len(budget.levels)
    if sizes < LEAST_SIZES or levels < LEAST_SPARSITIES:
        return f"{len(spent)} runs with {_count(levels, 'sparsity', 'sparsities')} and {_count(sizes, 'size', 'sizes')}"
    return ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
