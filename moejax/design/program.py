"""Compile a problem: measures of a point and their derivatives.

The problem is ``minimise w·m(z) where low ≤ m(z) ≤ high``. Laws are arguments of every lane, and weights and
constraints are not compiled, so one program serves a problem under many laws, budgets and goals.
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
from moejax.laws.law import Law

Lane = Mapping[str, Any]
"""Mapping with ``law``, and per measure ``weight``, ``low``, ``high``, ``multiplier`` and ``penalty``."""

GOALS = {"loss": lambda loss: loss, "efficiency_leverage": lambda leverage: -jnp.log(leverage)}
"""Objectives by the name of a law's output."""


def output_of(law: Law) -> str:
    """Return the output of a law that is an objective of designs.

    Raises:
      UserError: the law has no such output.
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
    """The compiled form of problems."""

    space: Space
    assumptions: CostAssumptions
    measured: tuple[str, ...]
    """Keys of ``MEASURES`` that are constrained or minimised and are not coordinates."""
    output: str

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the space."""
        return self.space.coordinates

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the measures, in order."""
        return (*(c.name for c in self.coordinates), *self.measured, "loss")

    def values(self, point: Any) -> dict[str, Any]:
        """Return the coordinates in plain numbers."""
        return {c.name: c.plain(point[i]) for i, c in enumerate(self.coordinates)}

    def measured_at(self, point: Any, law: Law) -> Any:
        """Return the measures that are not coordinates, on the scale of the search: logarithms, then the objective."""
        candidate = self.space.candidate(self.values(point))
        logs = [jnp.log(MEASURES[name].of(candidate, self.assumptions)) for name in self.measured]
        said = law(candidate.design)
        goal = GOALS[self.output](said[self.output] if isinstance(said, Mapping) else said)
        return jnp.stack([*(jnp.asarray(x, float) for x in logs), jnp.asarray(goal, float)])


@dataclass(frozen=True, kw_only=True)
class Local:
    """Measures of many points, each in its lane, with their derivatives with respect to the point."""

    measures: Float[np.ndarray, "lanes measures"]
    """Coordinates on the scale of the search, then the results of ``measured_at``."""
    jacobian: Float[np.ndarray, "lanes measures coordinates"]
    second: Float[np.ndarray, "lanes measures coordinates coordinates"]

    def hessian(self, forces: Float[np.ndarray, "lanes measures"]) -> np.ndarray:
        """Return the Hessians [lanes, coordinates, coordinates] of the measures weighted by ``forces``."""
        return np.einsum("lm,lmyz->lyz", forces, self.second)


def local(program: CompiledProblem, points: Any, laws: Any) -> Local:
    """Compute measures and derivatives."""
    with float64():
        measures, jacobian, second = (np.asarray(part) for part in _local(program, points, laws))
    lanes, size = points.shape
    return Local(
        measures=np.concatenate([points, measures], axis=1),
        jacobian=np.concatenate([np.broadcast_to(np.eye(size), (lanes, size, size)), jacobian], axis=1),
        second=np.concatenate([np.zeros((lanes, size, size, size)), second], axis=1),
    )


@functools.partial(jax.jit, static_argnums=0)
def _local(program: CompiledProblem, points: Any, laws: Any) -> tuple[Any, Any, Any]:
    # One program from one trace computes everything, because compilation takes most of the time of a design. With few
    # coordinates, forward-mode derivatives give the smaller program.
    def one(point: Any, law: Law) -> tuple[Any, Any, Any]:
        def measured(z: Any) -> tuple[Any, Any]:
            measured = program.measured_at(z, law)
            return measured, measured

        def slopes(z: Any) -> tuple[Any, tuple[Any, Any]]:
            jacobian, measures = jax.jacfwd(measured, has_aux=True)(z)
            return jacobian, (measures, jacobian)

        second, (measures, jacobian) = jax.jacfwd(slopes, has_aux=True)(point)
        return measures, jacobian, second

    return jax.vmap(one)(points, laws)
