"""Runs sorted into training budgets, each with several sparsities and sizes: what an IsoFLOP surface is fitted to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.runs import Runs, budgets
from moejax.float64 import float64

INPUTS = ("params_total", "tokens", "flops", "num_experts", "top_k")
WIDEST = 1.25
"""Runs at one budget differ by no more than this factor in FLOPs."""
LEAST_SIZES, LEAST_SPARSITIES = 3, 3
"""A surface bends in log size from the third size of a sparsity on, and in sparsity from the third sparsity."""
SHOWN = 5
"""Budgets that are named before the others are only counted."""


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
      UserError: a field is missing, a sparsity is none, the FLOPs form no budgets, or no budget carries a surface.
    """
    if missing := [name for name in INPUTS if getattr(runs.design, name) is None]:
        raise UserError(f"The recipe reads {', '.join(INPUTS)}, and the runs have no {', '.join(missing)}.")
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
            f"No budget carries an IsoFLOP surface, which needs runs of equal flops: {LEAST_SPARSITIES} sparsities "
            f"(1 - top_k / num_experts), each at {LEAST_SIZES} sizes (params_total). " + " ".join(first(left_out))
        )
    return kept, tuple(left_out)


def first(sentences: Sequence[str]) -> list[str]:
    """The first few, and how many there are besides."""
    more = len(sentences) - SHOWN
    return [*sentences[:SHOWN], *([f"And {more} more budgets."] if more > 0 else [])]


def sparsity_of(runs: Runs) -> Float[np.ndarray, " runs"]:
    """Abnar's S of every run, rounded so that equal ones are equal.

    Raises:
      UserError: more experts serve a token than there are.
    """
    with float64():
        sparsity = np.round(np.asarray(runs.design.sparsity, np.float64), 5)
    if (wrong := np.flatnonzero((sparsity < 0) | (sparsity >= 1) | ~np.isfinite(sparsity))).size:
        design, first = runs.design, wrong[0]
        raise UserError(
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
    sizes = [len(np.unique(budget.size[budget.sparsity == level])) for level in budget.levels]
    if (enough := sum(count >= LEAST_SIZES for count in sizes)) < LEAST_SPARSITIES:
        known = f"{_count(len(spent), 'run', 'runs')} with {_count(len(sizes), 'sparsity', 'sparsities')}"
        return f"{known}, {enough} of them at {LEAST_SIZES} sizes"
    return ""


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
