"""Compute the ratio of compute that two sets of designs need for equal loss, under a law."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moejax.architecture import Architecture
from moejax.design.constraint import Constraint
from moejax.design.coordinates import FLOPS, PARAMS_ACTIVE, TOKENS, UNIQUE_TOKENS, Sizes
from moejax.design.problem import Optimum, of_sizes, optimise
from moejax.design.sensitivity import solve_again, under_laws
from moejax.laws.accounting import design_of
from moejax.laws.law import Law
from moejax.laws.predict import check_experts

SCALE = {PARAMS_ACTIVE.name, TOKENS.name, UNIQUE_TOKENS.name, FLOPS.name}
"""Coordinates that vary within a set of designs; all others are held."""


@dataclass(frozen=True, kw_only=True)
class FamilyLeverage:
    """Leverage of one set of designs over another at a budget, both at their best sizes."""

    value: float
    family: Optimum
    """Optimum of the first set at the budget."""
    against: Optimum
    """Optimum of the second set with minimum FLOPs at the loss of the first."""


def proportions(law: Law, architecture: Architecture) -> dict[str, float]:
    """Return the coordinates of an architecture that a law reads, apart from its size.

    Raises:
      UserError: the law reads the number of active experts, and the model is dense.
    """
    design = design_of(architecture, 1.0)
    check_experts(law, design)
    names = [c.name for c in Sizes(tuple(law.inputs)).coordinates if c.name not in SCALE]
    return {name: float(getattr(design, name)) for name in names}


def leverage(law: Law, family: Sequence[Constraint], against: Sequence[Constraint], flops: float) -> FamilyLeverage:
    """Return the FLOPs of the second set at the loss that the first reaches with ``flops``, divided by ``flops``.

    Raises:
      UserError: as ``optimise``: a set has no optimum, or the second never reaches that loss.
    """
    first = optimise(of_sizes(law, (*family, Constraint(name="flops", high=flops))))
    loss = Constraint(name="loss", high=first.values["loss"])
    second = optimise(of_sizes(law, (*against, loss), goal="flops"))
    return FamilyLeverage(value=second.values["flops"] / flops, family=first, against=second)


def resampled(central: FamilyLeverage, laws: Any) -> list[float]:
    """Return the leverage under every law of a stack, such as a bootstrap; NaN if it is undefined."""
    best = under_laws(central.family, laws)
    budget = central.family.values["flops"]
    lanes = [i for i, one in enumerate(best) if one is not None]
    problems = []
    for i in lanes:
        one = best[i]
        assert one is not None
        others = tuple(constraint for constraint in central.against.problem.constraints if constraint.name != "loss")
        constraints = (*others, Constraint(name="loss", high=one.values["loss"]))
        problems.append(replace(central.against.problem, law=one.problem.law, constraints=constraints))
    again = solve_again([central.against] * len(lanes), problems) if lanes else []
    values = np.full(len(best), np.nan)
    for i, one in zip(lanes, again, strict=True):
        values[i] = np.nan if one is None else one.values["flops"] / budget
    return values.tolist()
