"""Compute the leverage between two sets of designs under a law: the ratio of their FLOPs at equal loss.

For a law of sizes, the optima of both sets are compared. For a formula, the FLOPs at equal loss are found by root
finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.architecture import Architecture
from moejax.design.constraint import Constraint
from moejax.design.coordinates import FLOPS, PARAMS_ACTIVE, TOKENS, UNIQUE_TOKENS, Sizes
from moejax.design.problem import Optimum, of_sizes, optimize
from moejax.design.sensitivity import solve_again, under_laws
from moejax.errors import UserError
from moejax.laws.accounting import design_of
from moejax.laws.design import design_from
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import Law
from moejax.laws.predict import check_experts
from moejax.wording import listed, option_hint

SCALE = {PARAMS_ACTIVE.name, TOKENS.name, UNIQUE_TOKENS.name, FLOPS.name}
"""Coordinates that vary within a set of designs; all others are fixed."""


@dataclass(frozen=True, kw_only=True)
class FamilyLeverage:
    """Leverage of one set of designs over another at a budget, each at its best size."""

    value: float
    family: Optimum
    """Optimum of the first set at the budget."""
    against: Optimum
    """Optimum of the second set with minimum FLOPs at the first set's loss."""


def proportions(law: Law, architecture: Architecture) -> dict[str, float]:
    """Return the coordinates that a law reads of an architecture, without its size, keyed by name.

    Raises:
      UserError: the law reads the number of active experts, and the model is dense.
    """
    design = design_of(architecture, 1.0)
    check_experts(law, design)
    names = [c.name for c in Sizes(tuple(law.inputs)).coordinates if c.name not in SCALE]
    return {name: float(getattr(design, name)) for name in names}


def leverage(law: Law, family: Sequence[Constraint], against: Sequence[Constraint], flops: float) -> FamilyLeverage:
    """Return the second set's FLOPs at the loss that the first set reaches with ``flops``, divided by ``flops``.

    Raises:
      UserError: a set has no optimum, or the second set never reaches this loss.
    """
    first = optimize(of_sizes(law, (*family, Constraint(name="flops", high=flops))))
    loss = Constraint(name="loss", high=first.values["loss"])
    second = optimize(of_sizes(law, (*against, loss), goal="flops"))
    return FamilyLeverage(value=second.values["flops"] / flops, family=first, against=second)


def leverages_under(central: FamilyLeverage, laws: Law) -> list[float]:
    """Return the leverage under every law of a stack, such as bootstrap laws; NaN if undefined."""
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


REACH = 16.0
"""Search range of compute, in e-folds on each side of the budget."""
BISECTIONS = 60

Given = tuple[tuple[str, float], ...]


def held_by(cls: type[FormulaLaw], given: Mapping[str, float], name: str) -> dict[str, float]:
    """Return the fixed values of a set of designs, keyed by ``Design`` name.

    Raises:
      UserError: a value that the formula reads is missing, or a value that it does not read is given.
    """
    columns = dict(cls.formula.columns)
    held = {columns.get(one, one): value for one, value in given.items()}
    _, wanted = _loss_of(cls)
    if set(held) != set(wanted):
        if not wanted:
            raise UserError(
                f"The formula {cls.formula.text!r} reads no column except the budget, so {name} cannot differ; use "
                f"another column of the table in the formula."
            )
        raise UserError(
            f"{name} gives {listed(held)}, but the formula {cls.formula.text!r} reads {listed(wanted)}; give "
            f"{','.join(f'{one}=VALUE' for one in wanted)}."
        )
    return held


@dataclass(frozen=True)
class FormulaLeverage:
    """Functional of a fitted formula that gives the leverage; NaN if the other set never reaches the loss."""

    family: Given
    against: Given
    flops: float

    def __call__(self, law: FormulaLaw) -> jax.Array:
        loss, _ = _loss_of(type(law))
        budget = jnp.log(self.flops)
        wanted = loss(law, dict(self.family), budget)
        still, level = jax.lax.stop_gradient((law, wanted))

        def excess(law: FormulaLaw, log_flops: jax.Array) -> jax.Array:
            return loss(law, dict(self.against), log_flops)

        def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = ends
            middle = (low + high) / 2
            above = excess(still, middle) > level
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        ends = (budget - REACH, budget + REACH)
        reached = (excess(still, ends[0]) > level) & (excess(still, ends[1]) < level)
        at, _ = jax.lax.fori_loop(0, BISECTIONS, halve, ends)
        # A Newton step from a constant point gives derivatives by the implicit function theorem.
        slope = jax.grad(lambda log_flops: excess(still, log_flops))(at)
        at = at - (excess(law, at) - wanted) / jnp.where(slope == 0, 1.0, slope)
        return jnp.where(reached, jnp.exp(at - budget), jnp.nan)


def _loss_of(cls: type[FormulaLaw]) -> tuple[Callable[[Any, Mapping[str, float], Any], Any], tuple[str, ...]]:
    """Return the loss of a set of designs as a function of log FLOPs, and the names of its fixed values.

    Raises:
      UserError: the formula reads no FLOPs and has no budget.
    """
    (target,) = cls.outputs
    if "flops" in cls.inputs:

        def at_flops(law: FormulaLaw, given: Mapping[str, float], log: jax.Array) -> jax.Array:
            found = law(design_from({**given, "flops": jnp.exp(log)}))
            return found[target] if isinstance(found, Mapping) else found

        return at_flops, tuple(name for name in cls.inputs if name != "flops")
    rule = next((rule for rule in cls.decides if f"optimal_{target}" in rule.gives), None)
    if rule is None:
        budget = option_hint(", or give its budget, such as --budget 'C = 6*N*D'")
        raise UserError(
            f"The formula {cls.formula.text!r} reads no flops, but leverage needs the cost of a design; fit a formula "
            f"of flops{budget}."
        )
    spent, *held = rule.given
    return lambda law, given, log: rule.decide(law, **{spent: jnp.exp(log)}, **given)[f"optimal_{target}"], tuple(held)
