"""Define the constraints of a problem, which may use a paper's own letters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from moejax.design.coordinates import Sizes, Space
from moejax.design.measures import in_units
from moejax.errors import UserError
from moejax.laws import LAWS
from moejax.laws.design import COMMON_LETTERS, LETTERS, SCALED_LETTERS
from moejax.laws.law import Law
from moejax.wording import shown

SHARES = ("sparsity", "shared_share", "activation_ratio")
"""Variables that are shares of the experts, at most 1."""


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """Bounds of a measure, a coordinate or the loss; equal bounds fix the value."""

    name: str
    low: float = 0.0
    high: float = math.inf
    said: str = ""
    """Constraint as the user gave it, if it used a paper's letter or a share of experts."""
    given: Constraint | None = None
    """The constraint before ``restated``."""

    def __str__(self) -> str:
        if self.said:
            return self.said
        low, high = (in_units(self.name, end) for end in (self.low, self.high))
        if self.low == self.high:
            return f"{self.name} = {low}"
        return (f"{low} <= " if self.low > 0 else "") + self.name + (f" <= {high}" if math.isfinite(self.high) else "")


def held(given: Mapping[str, float]) -> tuple[Constraint, ...]:
    """Return constraints that fix quantities at the given values.

    Raises:
      UserError: ``given`` is not a mapping of names to values.
    """
    if not isinstance(given, Mapping):
        raise UserError(f'hold is {shown(given)}; give a dictionary of names and values, such as {{"expansion": 16}}.')
    return tuple(Constraint(name=name, low=float(value), high=float(value)) for name, value in given.items())


def bounded(given: Mapping[str, tuple[float, float]]) -> tuple[Constraint, ...]:
    """Return constraints that bound quantities, each by its smallest and its largest value.

    Raises:
      UserError: the bounds of a quantity are not two numbers, the smaller first.
    """
    constraints = []
    for name, bounds in given.items():
        try:
            low, high = (math.nan, math.nan) if isinstance(bounds, str) else map(float, bounds)
        except (TypeError, ValueError):
            low = high = math.nan
        if not low <= high:
            raise UserError(
                f"The range of {name} is {shown(bounds)}; give the smallest and the largest value, such as "
                f'range={{"{name}": (1, 10)}}.'
            )
        constraints.append(Constraint(name=name, low=low, high=high))
    return tuple(constraints)


def restated(constraint: Constraint, law: Law, space: Space) -> Constraint:
    """Convert a constraint on a paper's letter or a share of experts to a constraint on a searched quantity.

    Shares of experts may be 0, but most quantities are searched by their logarithm. Sparsity is therefore converted to
    the number of routed experts per active routed expert. The shared share, unless it is a coordinate, is converted to
    the routed share.

    Raises:
      UserError: the share is outside its range.
    """
    constraint = constraint.given or constraint
    own = next((name for name, cls in LAWS.items() if isinstance(law, cls)), "")
    name = {**COMMON_LETTERS, **LETTERS.get(own, {})}.get(constraint.name, constraint.name)
    scale = SCALED_LETTERS.get((own, constraint.name), 1.0)
    low, high = constraint.low * scale, constraint.high * scale
    said = constraint.said or str(constraint)
    if name in SHARES and math.isfinite(high):
        _check(said, name, low, high)
    chosen = {coordinate.name for coordinate in space.coordinates}
    if name == "sparsity":
        name, low, high = "expert_expansion", 1 / (1 - low), 1 / (1 - high) if high < 1 else math.inf
    elif name == "shared_share" and name not in chosen:
        name, low, high = "routed_share", max(0.0, 1 - high), 1 - low
    elif name == "activation_ratio" and isinstance(space, Sizes):
        # Sizes have no shared experts if a law reads the number of routed experts.
        name, low, high = "expert_expansion", 1 / high, 1 / low if low > 0 else math.inf
    if (name, low, high) == (constraint.name, constraint.low, constraint.high):
        return constraint
    return replace(constraint, name=name, low=low, high=high, said=said, given=constraint)


def _check(said: str, name: str, low: float, high: float) -> None:
    least, most = (0.0, 1.0) if name == "activation_ratio" else (-1e-300, math.nextafter(1.0, 0.0))
    if not (low > least or low == high > least) or high > most or low > most:
        bounds = "above 0 and at most 1" if name == "activation_ratio" else "at least 0 and below 1"
        raise UserError(f"{said} is impossible: {name} is a share of the experts and must be {bounds}.")
