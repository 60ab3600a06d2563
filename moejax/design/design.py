"""Answer ``moejax.design(law, flops=1e24)``: the model to train under a law and constraints, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moejax.architecture import Architecture
from moejax.design.constraint import Constraint, held
from moejax.design.decide import DesignResult, decide
from moejax.design.problem import of_sizes
from moejax.errors import UserError
from moejax.laws.predict import Ranged, published


def design(
    law: Any,
    *,
    hold: Mapping[str, float | int] | None = None,
    like: Architecture | None = None,
    within: float = 0.001,
    level: float = 0.9,
    **at_most: float | int,
) -> DesignResult:
    """Return the design of minimum loss under a law and constraints, with prices, flat region, and the model to build.

    Args:
      law: a law's name or alias (its first published constants), a published set, a law with coefficients, or a
        ``FitResult``.
      hold: fixed values, such as ``{"expansion": 16}``.
      like: architecture that gives the proportions not read by the law.
      within: rise of the loss in nats per token that defines the flat region.
      level: coverage of the intervals, which only a fit has.
      at_most: upper bounds by name, such as ``flops=1e24`` or ``params_total=1e12``.

    Raises:
      UserError: the law or constraint is unknown, nothing constrains the design, or the constraints contradict each
        other.
    """
    known = published(law) if isinstance(law, str) else law
    constraints = [Constraint(name=name, high=float(value)) for name, value in at_most.items()]
    constraints += held(hold or {})
    if not constraints:
        raise UserError("Nothing constrains the design; give a budget, such as flops=1e24.")
    # A published set and a fit contain a law.
    bare: Any = getattr(known, "law", known)
    problem = of_sizes(bare, tuple(constraints))
    ranged = known if isinstance(known, Ranged) else None
    # A fit has a covariance, from which laws are drawn.
    draw = getattr(known, "drawn", None)
    return decide(problem, like=like, within=within, known=ranged, likely=None if draw is None else draw(), level=level)
