"""Compute the leverage of one value of a formula's column: the ratio of FLOPs at equal loss, by root finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from moejax.errors import UserError
from moejax.laws.design import design_from
from moejax.laws.formula_law import FormulaLaw
from moejax.wording import listed

REACH = 16.0
"""Search range of compute in e-folds on either side of the budget."""
BISECTIONS = 60

Given = tuple[tuple[str, float], ...]


def held_by(cls: type[FormulaLaw], given: Mapping[str, float], name: str) -> dict[str, float]:
    """Return the held values of a set of designs, under the names of a ``Design``.

    Raises:
      UserError: a value that the formula reads is missing, or one that it does not read is given.
    """
    columns = dict(cls.formula.columns)
    held = {columns.get(one, one): value for one, value in given.items()}
    _, wanted = _loss_of(cls)
    if set(held) != set(wanted):
        if not wanted:
            raise UserError(
                f"The formula {cls.formula.text!r} reads no column besides the budget, so {name} cannot differ; name "
                f"a column of the table in the formula."
            )
        raise UserError(
            f"{name} gives {listed(held)}, but the formula {cls.formula.text!r} reads {listed(wanted)}: give "
            f"{','.join(f'{one}=VALUE' for one in wanted)}."
        )
    return held


@dataclass(frozen=True)
class FormulaLeverage:
    """Functional of a fitted formula that gives the leverage; NaN if the other set of designs never has that loss."""

    family: Given
    against: Given
    flops: float

    def __call__(self, law: Any) -> Any:
        loss, _ = _loss_of(type(law))
        budget = jnp.log(self.flops)
        wanted = loss(law, dict(self.family), budget)
        still, level = jax.lax.stop_gradient((law, wanted))

        def excess(law: Any, log_flops: Any) -> Any:
            return loss(law, dict(self.against), log_flops)

        def halve(_: Any, ends: Any) -> Any:
            low, high = ends
            middle = (low + high) / 2
            above = excess(still, middle) > level
            return jnp.where(above, middle, low), jnp.where(above, high, middle)

        ends = (budget - REACH, budget + REACH)
        reached = (excess(still, ends[0]) > level) & (excess(still, ends[1]) < level)
        at, _ = jax.lax.fori_loop(0, BISECTIONS, halve, ends)
        # A Newton step from a constant point applies the implicit function theorem.
        slope = jax.grad(lambda log_flops: excess(still, log_flops))(at)
        at = at - (excess(law, at) - wanted) / jnp.where(slope == 0, 1.0, slope)
        return jnp.where(reached, jnp.exp(at - budget), jnp.nan)


def _loss_of(cls: type[FormulaLaw]) -> tuple[Callable[[Any, Mapping[str, float], Any], Any], tuple[str, ...]]:
    """Return the loss of a set of designs as a function of log FLOPs, and the names of its held values.

    Raises:
      UserError: the formula reads no FLOPs and has no budget.
    """
    (target,) = cls.outputs
    if "flops" in cls.inputs:

        def at_flops(law: Any, given: Mapping[str, float], log: Any) -> Any:
            found = law(design_from({**given, "flops": jnp.exp(log)}))
            return found[target] if isinstance(found, Mapping) else found

        return at_flops, tuple(name for name in cls.inputs if name != "flops")
    rule = next((rule for rule in cls.decides if f"optimal_{target}" in rule.gives), None)
    if rule is None:
        raise UserError(
            f"The formula {cls.formula.text!r} reads no flops, and leverage needs what a budget is spent on; fit it "
            f"with --budget 'C = 6*N*D'."
        )
    spent, *held = rule.given
    return lambda law, given, log: rule.decide(law, **{spent: jnp.exp(log)}, **given)[f"optimal_{target}"], tuple(held)
