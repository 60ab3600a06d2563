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
import numpy as np
from jaxtyping import Float

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


@dataclass(frozen=True, kw_only=True)
class Local:
    """Measures of many points, each under its lane, with their derivatives in the point."""

    measures: Float[np.ndarray, "lanes measures"]
    jacobian: Float[np.ndarray, "lanes measures coordinates"]
    hessian: Float[np.ndarray, "lanes coordinates coordinates"]
    """Of the sum of the measures by ``forces``."""


def local(program: CompiledProblem, points: Any, laws: Any, forces: Any) -> Local:
    """Measures and derivatives; ``forces`` weigh the measures for the Hessian, such as goal and multipliers."""
    with float64():
        measures, jacobian, hessian = (np.asarray(part) for part in _local(program, points, laws, forces))
    return Local(measures=measures, jacobian=jacobian, hessian=hessian)


@functools.partial(jax.jit, static_argnums=0)
def _local(program: CompiledProblem, points: Any, laws: Any, forces: Any) -> tuple[Any, Any, Any]:
    # All of it in one program, as compiling it takes most of the time of a design.
    def one(point: Any, law: Any, force: Any) -> tuple[Any, Any, Any]:
        def pull(z: Any) -> tuple[Any, tuple[Any, Any]]:
            measures, back = jax.vjp(lambda z: program.measures(z, law), z)
            return back(force)[0], (measures, jax.vmap(back)(jnp.eye(len(measures)))[0])

        # Jacobian and Hessian follow from one trace of the measures.
        hessian, (measures, jacobian) = jax.jacfwd(pull, has_aux=True)(point)
        return measures, jacobian, hessian

    return jax.vmap(one)(points, laws, forces)
