"""Compile problems and solve many at once, with an augmented Lagrangian and Newton steps on the optimality conditions.

The problem is ``minimize w·m(z) where low ≤ m(z) ≤ high``. Problems are solved in batches; each problem of a batch is a
lane. Laws, weights and constraints are arguments, so one program serves many laws, budgets and goals.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from moejax.design.coordinates import Coordinate, Space
from moejax.design.measures import MEASURES, CostAssumptions
from moejax.errors import UserError
from moejax.float64 import float64
from moejax.laws.law import Law

Lane = Mapping[str, Any]
"""Mapping with ``law``, and with ``weight``, ``low``, ``high``, ``multiplier`` and ``penalty`` per measure."""

GOALS = {"loss": lambda loss: loss, "efficiency_leverage": lambda leverage: -jnp.log(leverage)}
"""Objectives by law output."""


def output_of(law: Law) -> str:
    """Return the law's output that designs minimize or maximize.

    Raises:
      UserError: the law has no output of ``GOALS``.
    """
    known = [name for name in GOALS if name in law.outputs]
    if not known:
        raise UserError(
            f"The law {type(law).__name__} predicts {', '.join(law.outputs)}, but a design needs a law that predicts a "
            f"loss or a leverage. Evaluate this law at a design with `moejax predict`."
        )
    return known[0]


@dataclass(frozen=True)
class CompiledProblem:
    """The static part of problems that share a compiled program."""

    space: Space
    assumptions: CostAssumptions
    measured: tuple[str, ...]
    """Keys of ``MEASURES`` that are constrained or minimized and are not coordinates."""
    output: str

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the space."""
        return self.space.coordinates

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of coordinates and measures, in order."""
        return (*(c.name for c in self.coordinates), *self.measured, "loss")

    def values(self, point: jax.Array) -> dict[str, jax.Array]:
        """Return the coordinates as plain numbers, keyed by name."""
        return {c.name: c.plain(point[i]) for i, c in enumerate(self.coordinates)}

    def measured_at(self, point: jax.Array, law: Law) -> jax.Array:
        """Return the measures that are not coordinates, on the scale of the search: logarithms, then the objective."""
        candidate = self.space.candidate(self.values(point))
        logs = [jnp.log(MEASURES[name].of(candidate, self.assumptions)) for name in self.measured]
        said = law(candidate.design)
        goal = GOALS[self.output](said[self.output] if isinstance(said, Mapping) else said)
        return jnp.stack([*(jnp.asarray(x, float) for x in logs), jnp.asarray(goal, float)])


@dataclass(frozen=True, kw_only=True)
class Local:
    """Measures at many points, one per lane, and their derivatives with respect to the point."""

    measures: Float[np.ndarray, "lanes measures"]
    """Coordinates on the scale of the search, then the results of ``measured_at``."""
    jacobian: Float[np.ndarray, "lanes measures coordinates"]
    second: Float[np.ndarray, "lanes measures coordinates coordinates"]

    def hessian(self, forces: Float[np.ndarray, "lanes measures"]) -> np.ndarray:
        """Return the Hessians [lanes, coordinates, coordinates] of the sums of measures weighted by ``forces``."""
        return np.einsum("lm,lmyz->lyz", forces, self.second)


def local(program: CompiledProblem, points: np.ndarray, laws: Law) -> Local:
    """Compute the measures at ``points`` and their derivatives."""
    with float64():
        measures, jacobian, second = (np.asarray(part) for part in _local(program, points, laws))
    lanes, size = points.shape
    return Local(
        measures=np.concatenate([points, measures], axis=1),
        jacobian=np.concatenate([np.broadcast_to(np.eye(size), (lanes, size, size)), jacobian], axis=1),
        second=np.concatenate([np.zeros((lanes, size, size, size)), second], axis=1),
    )


@functools.partial(jax.jit, static_argnums=0)
def _local(program: CompiledProblem, points: jax.Array, laws: Law) -> tuple[jax.Array, jax.Array, jax.Array]:
    # Compilation takes most of the time of a design, so one program from one trace computes everything. With few
    # coordinates, forward-mode derivatives give a smaller program.
    def one(point: jax.Array, law: Law) -> tuple[jax.Array, jax.Array, jax.Array]:
        def measured(z: jax.Array) -> tuple[jax.Array, jax.Array]:
            measured = program.measured_at(z, law)
            return measured, measured

        def slopes(z: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            jacobian, measures = jax.jacfwd(measured, has_aux=True)(z)
            return jacobian, (measures, jacobian)

        second, (measures, jacobian) = jax.jacfwd(slopes, has_aux=True)(point)
        return measures, jacobian, second

    return jax.vmap(one)(points, laws)


ROUNDS = 14
"""Maximum number of multiplier updates."""
FEASIBLE = 1e-7
"""Tolerance of constraints, in e-folds (or nats)."""
TOGETHER = 8
"""Number of lanes that are solved together."""
MOST_STEPS = 100
"""Maximum number of steps per round."""
LONGEST, SHORTEST = 4.0, 1e-9
"""Maximum step along one eigenvector of the Hessian, in e-folds, and step length below which a lane stops."""
FLAT = 1e-7
"""Norm of the gradient at which a round ends, relative to the objective if that exceeds 1."""
STEPS = 12
"""Number of final Newton steps."""

T = TypeVar("T", bound="Solved | _Conditions")


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The solution of every lane."""

    points: Float[np.ndarray, "lanes coordinates"]
    measures: Float[np.ndarray, "lanes measures"]
    multipliers: Float[np.ndarray, "lanes measures"]
    """Decrease of the objective per unit by which a constraint is loosened; negative for a lower bound."""
    outside: Float[np.ndarray, "lanes measures"]
    """Constraint violation of every measure."""
    slope: Float[np.ndarray, " lanes"]
    """Norm of the Lagrangian's gradient."""
    values: Float[np.ndarray, " lanes"]
    """Value of the objective."""
    signs: Bool[np.ndarray, " lanes"]
    """True if every multiplier has the sign that its active constraint requires."""

    @property
    def holds(self) -> Bool[np.ndarray, " lanes"]:
        """Return whether each lane's constraints hold and its objective is stationary."""
        return (
            (np.abs(self.outside).max(axis=1) <= FEASIBLE) & (self.slope < 1e-6) & np.isfinite(self.values) & self.signs
        )


def solve(program: CompiledProblem, points: np.ndarray, lanes: Lane) -> Solved:
    """Solve every lane from its point in ``points``; ``law``, ``weight``, ``low`` and ``high`` of ``lanes`` have an
    entry per lane."""
    points, parts = np.asarray(points, float), []
    for first in range(0, len(points), TOGETHER):
        # A constant number of lanes needs only one compilation.
        index = np.minimum(np.arange(first, first + TOGETHER), len(points) - 1)
        parts.append(_solve(program, points[index], jax.tree.map(lambda x, i=index: np.asarray(x)[i], lanes)))
    joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Solved)}
    return Solved(**{name: values[: len(points)] for name, values in joined.items()})


def _solve(program: CompiledProblem, points: np.ndarray, lanes: Lane) -> Solved:
    lanes = {**lanes, "multiplier": np.zeros_like(lanes["weight"]), "penalty": _penalties(program, points, lanes)}
    missed = np.full(len(points), np.inf)
    solved = None
    for _ in range(ROUNDS):
        points = _minimize(program, points, lanes)
        measures = local(program, points, lanes["law"]).measures
        outside = np.abs(_outside(measures, lanes["low"], lanes["high"])).max(axis=1)
        shifted = measures + lanes["multiplier"] / lanes["penalty"]
        multiplier = lanes["penalty"] * _outside(shifted, lanes["low"], lanes["high"])
        slow = outside > np.maximum(0.25 * missed, FEASIBLE)
        penalty = np.minimum(lanes["penalty"] * np.where(slow, 4.0, 1.0)[:, None], 1e8)
        lanes, missed = {**lanes, "multiplier": np.nan_to_num(multiplier), "penalty": penalty}, outside
        ends = _finish(program, points, lanes["multiplier"], lanes)
        solved = ends if solved is None else _lanes(solved.holds, solved, ends)
        if solved.holds.all():
            break
    assert solved is not None
    return solved


def _minimize(program: CompiledProblem, points: np.ndarray, lanes: Lane) -> np.ndarray:
    """Minimize the augmented Lagrangian from every point.

    Newton steps along the Hessian's eigenvectors have an adaptive maximum length and are accepted only if they decrease
    the value. They are computed in NumPy for all lanes together, so that the search needs no compilation.
    """

    def lagrangian(at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        here = local(program, at, lanes["law"])
        shifted = here.measures + lanes["multiplier"] / lanes["penalty"]
        outside = _outside(shifted, lanes["low"], lanes["high"])
        forces = lanes["weight"] + lanes["penalty"] * outside
        value = np.sum(lanes["weight"] * here.measures + lanes["penalty"] / 2 * outside**2, axis=1)
        bent = np.einsum("lm,lmy,lmz->lyz", lanes["penalty"] * (outside != 0), here.jacobian, here.jacobian)
        return value, np.einsum("lm,lmz->lz", forces, here.jacobian), here.hessian(forces) + bent

    points, longest = np.array(points), np.ones(len(points))
    # A non-finite point does not move, and no step leads to a non-finite point.
    with np.errstate(all="ignore"):
        value, gradient, hessian = lagrangian(points)
        unfinished = np.isfinite(value) & np.isfinite(hessian).all(axis=(1, 2))
        for _ in range(MOST_STEPS):
            unfinished &= (np.linalg.norm(gradient, axis=1) > FLAT * np.maximum(1, np.abs(value))) & (
                longest > SHORTEST
            )
            if not unfinished.any():
                break
            curvature, ways = np.linalg.eigh(np.where(unfinished[:, None, None], hessian, 0.0))
            along = np.einsum("lzk,lz->lk", ways, gradient) / np.maximum(np.abs(curvature), 1e-300)
            change = np.einsum("lzk,lk->lz", ways, np.clip(along, -longest[:, None], longest[:, None]))
            there = points - np.where(unfinished[:, None], change, 0.0)
            new = lagrangian(there)
            better = unfinished & (new[0] < value) & np.isfinite(new[2]).all(axis=(1, 2))
            longest = np.where(better, np.minimum(2 * longest, LONGEST), longest / 4)
            points, value, gradient, hessian = (
                _chosen(better, one, other)
                for one, other in zip((there, *new), (points, value, gradient, hessian), strict=True)
            )
    return points


def _penalties(program: CompiledProblem, points: np.ndarray, lanes: Lane) -> Float[np.ndarray, "lanes measures"]:
    """Return penalties with which an e-fold of violation costs about ten times its gain in the objective."""
    slopes = local(program, points, lanes["law"]).jacobian
    gain = np.linalg.norm(np.einsum("lm,lmz->lz", lanes["weight"], slopes), axis=1)
    steep = np.maximum((slopes**2).sum(axis=2), 1e-6)
    return np.nan_to_num(10 * np.clip(gain, 1e-2, 1e2)[:, None] / steep, nan=1.0)


def _outside(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    # An infinite measure without a bound gives NaN, which no lane accepts.
    with np.errstate(invalid="ignore"):
        return values - np.clip(values, low, high)


def _finish(program: CompiledProblem, points: np.ndarray, multipliers: np.ndarray, lanes: Lane) -> Solved:
    """Run Newton steps on the optimality conditions as long as their residuals decrease.

    The residuals are the gradient of the Lagrangian and the violations of binding constraints. The multiplier of a
    constraint that does not bind stays 0.
    """
    low, high = lanes["low"], lanes["high"]
    binds, size = (multipliers != 0) | (low == high), points.shape[1]
    bound = np.where(binds, np.where(multipliers > 0, high, low), 0.0)
    here = _conditions(program, points, multipliers, lanes, binds, bound)
    for _ in range(STEPS):
        # A non-finite point has no step and is not better.
        with np.errstate(all="ignore"):
            change = np.stack([_step(*lane) for lane in zip(here.slopes, here.wrong, strict=True)])
            change *= np.minimum(1.0, 1.0 / np.abs(change[:, :size]).max(axis=1, keepdims=True))
            moved, pulled = here.points - change[:, :size], here.multipliers - change[:, size:]
            there = _conditions(program, moved, pulled, lanes, binds, bound)
            better = np.linalg.norm(there.wrong, axis=1) < np.linalg.norm(here.wrong, axis=1)
        if not better.any():
            break
        here = _lanes(better, there, here)
    return Solved(
        points=here.points,
        measures=here.measures,
        multipliers=here.multipliers,
        outside=_outside(here.measures, low, high),
        slope=np.linalg.norm(here.wrong[:, :size], axis=1),
        values=np.einsum("lm,lm->l", lanes["weight"], here.measures),
        signs=np.all((here.multipliers * multipliers >= 0) | (low == high), axis=1),
    )


@dataclass(frozen=True, kw_only=True)
class _Conditions:
    """The optimality conditions at each lane's point."""

    points: np.ndarray
    multipliers: np.ndarray
    measures: np.ndarray
    wrong: np.ndarray
    """Residuals of the optimality conditions."""
    slopes: np.ndarray
    """Derivatives of the residuals with respect to point and multipliers."""


def _conditions(
    program: CompiledProblem,
    points: np.ndarray,
    multipliers: np.ndarray,
    lanes: Lane,
    binds: np.ndarray,
    bound: np.ndarray,
) -> _Conditions:
    at, forces = local(program, points, lanes["law"]), lanes["weight"] + multipliers
    pull = np.einsum("lm,lmz->lz", forces, at.jacobian)
    missed = np.where(binds, at.measures - bound, multipliers)
    rows = np.where(binds[:, :, None], at.jacobian, 0.0)
    idle = np.where(binds, 0.0, 1.0)[:, :, None] * np.eye(binds.shape[1])
    return _Conditions(
        points=points,
        multipliers=multipliers,
        measures=at.measures,
        wrong=np.concatenate([pull, missed], axis=1),
        slopes=np.block([[at.hessian(forces), at.jacobian.transpose(0, 2, 1)], [rows, idle]]),
    )


def _step(slopes: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """Return the Newton step of a lane's point and multipliers; NaN if derivatives are not finite."""
    if not (np.isfinite(slopes).all() and np.isfinite(wrong).all()):
        return np.full(len(wrong), np.nan)
    return np.linalg.lstsq(slopes, wrong, rcond=1e-13)[0]


def _lanes(keep: np.ndarray, mine: T, others: T) -> T:
    """Select lanes from ``mine`` where ``keep`` is True, else from ``others``."""
    names = [f.name for f in fields(mine)]
    return type(mine)(**{name: _chosen(keep, getattr(mine, name), getattr(others, name)) for name in names})


def _chosen(keep: np.ndarray, mine: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.where(keep.reshape(-1, *[1] * (mine.ndim - 1)), mine, others)
