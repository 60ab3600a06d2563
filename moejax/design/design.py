"""``moejax.design(law, flops=1e24)``: what to train under a law and constraints, in one call."""

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
    """The design of least loss under a law and constraints, what each constraint is worth, how flat it is, and what to
    build.

    Args:
      law: a law's name or a paper's first author (its first published constants), a published set, a law with
        coefficients, or a ``FitResult``.
      hold: what must have one value, such as ``{"expansion": 16}``.
      like: the architecture whose proportions stay where the law is silent.
      within: nats per token by which the loss may rise in the flat region.
      level: of the intervals, which a fit has.
      at_most: constraints by their names, such as ``flops=1e24`` or ``params_total=1e12``.

    Raises:
      UserError: there is no such law or constraint, nothing constrains the design, or the constraints contradict each
      other.
    """
    known = published(law) if isinstance(law, str) else law
    constraints = [Constraint(name=name, high=float(value)) for name, value in at_most.items()]
    constraints += held(hold or {})
    if not constraints:
        raise UserError("Nothing constrains the design; give a budget, such as flops=1e24.")
    # A published set and a fit hold a law; a law is one.
    problem = of_sizes(getattr(known, "law", known), tuple(constraints))
    ranged = known if isinstance(known, Ranged) else None
    # A fit holds a covariance, and laws drawn from it.
    draw = getattr(known, "drawn", None)
    return decide(problem, like=like, within=within, known=ranged, likely=None if draw is None else draw(), level=level)
