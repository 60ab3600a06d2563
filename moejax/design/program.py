"""The problem as it is compiled: measures of a point, and the augmented Lagrangian of constraints on them.

The problem is ``minimise w·m(z) where low ≤ m(z) ≤ high``. Laws, weights and constraints are arguments of every lane,
so one compiled program solves a problem under many laws, budgets and goals at once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from moejax.design.coordinates import Coordinate, Space
from moejax.design.measures import MEASURES, CostAssumptions
from moejax.errors import UserError
from moejax.float64 import float64

Lane = Mapping[str, Any]
"""``law``, and per measure ``weight``, ``low``, ``high``, ``multiplier`` and ``penalty``."""

GOALS = {"loss": lambda loss: loss, "efficiency_leverage": lambda leverage: -jnp.log(leverage)}
"""What is minimised, by the name of a law's output."""


def output_of(law: Any) -> str:
    """The output of a law that a design can be judged by.

    Raises:
      UserError: the law has none.
    """
    known = [name for name in GOALS if name in law.outputs]
    if not known:
        raise UserError(
            f"The law {type(law).__name__} predicts {', '.join(law.outputs)}, and neither a loss nor a leverage: "
            f"there is nothing to minimise. Ask it of a design with `moejax predict`."
        )
    return known[0]


@dataclass(frozen=True)
class CompiledProblem:
    """What is compiled once."""

    space: Space
    assumptions: CostAssumptions
    measured: tuple[str, ...]
    """Keys of ``MEASURES`` that are constrained or minimised, apart from those that are coordinates."""
    output: str

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """What is chosen."""
        return self.space.coordinates

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the measures, in order."""
        return (*(c.name for c in self.coordinates), *self.measured, "loss")

    def values(self, point: Any) -> dict[str, Any]:
        """Coordinates in plain numbers."""
        return {c.name: c.plain(point[i]) for i, c in enumerate(self.coordinates)}

    def measures(self, point: Any, law: Any) -> Any:
        """Every measure as it is constrained: coordinates as they are searched, then logarithms, then the loss."""
        candidate = self.space.candidate(self.values(point))
        logs = [jnp.log(MEASURES[name].of(candidate, self.assumptions)) for name in self.measured]
        said = law(candidate.design)
        goal = GOALS[self.output](said[self.output] if isinstance(said, Mapping) else said)
        return jnp.concatenate([point, jnp.stack([*(jnp.asarray(x, float) for x in logs), jnp.asarray(goal, float)])])

    def __call__(self, point: Any, shared: None, lane: Lane) -> Any:
        """The augmented Lagrangian: a multiplier and a parabola for how far a measure is outside its constraints."""
        measures = self.measures(point, lane["law"])
        multiplier, penalty = lane["multiplier"], lane["penalty"]
        shifted = measures + multiplier / penalty
        outside = shifted - jnp.clip(shifted, lane["low"], lane["high"])
        terms = penalty / 2 * outside**2 - multiplier**2 / (2 * penalty)
        return jnp.dot(lane["weight"], measures) + jnp.sum(terms)


def lagrangian(program: CompiledProblem, point: Any, multiplier: Any, lane: Lane) -> tuple[Any, Any]:
    """The objective with the constraints' multipliers, whose gradient is 0 at an optimum; and the measures."""
    measures = program.measures(point, lane["law"])
    return jnp.dot(lane["weight"], measures) + jnp.dot(multiplier, measures), measures


def jacobian(program: CompiledProblem, points: Any, lanes: Lane) -> tuple[Any, Any]:
    """Measures of every lane, and their derivatives in its point."""
    with float64():
        return _jacobian(program, points, lanes)


@functools.partial(jax.jit, static_argnums=0)
def _jacobian(program: CompiledProblem, points: Any, lanes: Lane) -> tuple[Any, Any]:
    def both(point: Any, lane: Lane) -> tuple[Any, Any]:
        measures, back = jax.vjp(lambda z: program.measures(z, lane["law"]), point)
        return measures, jax.vmap(back)(jnp.eye(len(measures)))[0]

    return jax.vmap(both)(points, lanes)
