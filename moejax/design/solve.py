"""Many problems at once: augmented Lagrangian for the constraints, then Newton on the conditions of an optimum."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from moejax.design.program import CompiledProblem, Lane, jacobian, lagrangian
from moejax.float64 import float64
from moejax.minimise import minimise_lanes

ROUNDS = 14
"""Updates of the multipliers, at most."""
FEASIBLE = 1e-7
"""E-folds (or nats) by which a constraint may be missed."""
TOGETHER = 8
"""Lanes that are solved in one go."""
STEPS = 12
"""Newton steps at the end."""


@dataclass(frozen=True, kw_only=True)
class Solved:
    """Where every lane ended."""

    points: Float[np.ndarray, "lanes coordinates"]
    measures: Float[np.ndarray, "lanes measures"]
    multipliers: Float[np.ndarray, "lanes measures"]
    """By how much the objective falls per unit that a constraint is loosened; negative at a lower one."""
    outside: Float[np.ndarray, "lanes measures"]
    """How far every measure is outside its constraints."""
    slope: Float[np.ndarray, " lanes"]
    """Length of the Lagrangian's gradient."""
    values: Float[np.ndarray, " lanes"]
    """What is minimised."""
    signs: Bool[np.ndarray, " lanes"]
    """Whether every constraint pushes inward."""

    @property
    def holds(self) -> Bool[np.ndarray, " lanes"]:
        """Whether all constraints hold and nothing falls any more, lane by lane."""
        return (
            (np.abs(self.outside).max(axis=1) <= FEASIBLE) & (self.slope < 1e-6) & np.isfinite(self.values) & self.signs
        )

    def where_not_held(self, other: Solved) -> Solved:
        """The other's lanes wherever these do not hold."""
        keep = self.holds

        def chosen(mine: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.where(keep.reshape(-1, *[1] * (mine.ndim - 1)), mine, others)

        return Solved(**{f.name: chosen(getattr(self, f.name), getattr(other, f.name)) for f in fields(Solved)})


def solve(program: CompiledProblem, points: Any, lanes: Lane) -> Solved:
    """Every lane from its point. ``lanes`` needs ``law``, ``weight``, ``low`` and ``high``, with an entry a lane."""
    points, parts = np.asarray(points, float), []
    for first in range(0, len(points), TOGETHER):
        # Always as many lanes, so that they are compiled once.
        index = np.minimum(np.arange(first, first + TOGETHER), len(points) - 1)
        parts.append(_solve(program, points[index], jax.tree.map(lambda x, i=index: np.asarray(x)[i], lanes)))
    joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Solved)}
    return Solved(**{name: values[: len(points)] for name, values in joined.items()})


def _solve(program: CompiledProblem, points: Any, lanes: Lane) -> Solved:
    lanes = {**lanes, "multiplier": np.zeros_like(lanes["weight"]), "penalty": _penalties(program, points, lanes)}
    missed = np.full(len(points), np.inf)
    solved = None
    for _ in range(ROUNDS):
        minima = minimise_lanes(program, points, None, lanes, tolerance=1e-7, max_iterations=300).points
        points = np.where(np.isfinite(minima), minima, points)
        measures = np.asarray(jacobian(program, points, lanes)[0])
        outside = np.abs(measures - np.clip(measures, lanes["low"], lanes["high"])).max(axis=1)
        shifted = measures + lanes["multiplier"] / lanes["penalty"]
        multiplier = lanes["penalty"] * (shifted - np.clip(shifted, lanes["low"], lanes["high"]))
        slow = outside > np.maximum(0.25 * missed, FEASIBLE)
        penalty = np.minimum(lanes["penalty"] * np.where(slow, 4.0, 1.0)[:, None], 1e8)
        lanes, missed = {**lanes, "multiplier": np.nan_to_num(multiplier), "penalty": penalty}, outside
        with float64():
            ends = Solved(**{k: np.asarray(v) for k, v in _finish(program, points, lanes["multiplier"], lanes).items()})
        solved = ends if solved is None else solved.where_not_held(ends)
        if solved.holds.all():
            break
    assert solved is not None
    return solved


def _penalties(program: CompiledProblem, points: Any, lanes: Lane) -> Float[np.ndarray, "lanes measures"]:
    """Penalties at which an e-fold outside a constraint costs about ten times what the objective gains by it."""
    slopes = np.asarray(jacobian(program, points, lanes)[1])
    gain = np.linalg.norm(np.einsum("lm,lmz->lz", lanes["weight"], slopes), axis=1)
    steep = np.maximum((slopes**2).sum(axis=2), 1e-6)
    return np.nan_to_num(10 * np.clip(gain, 1e-2, 1e2)[:, None] / steep, nan=1.0)


@functools.partial(jax.jit, static_argnums=0)
def _finish(program: CompiledProblem, points: Any, multipliers: Any, lanes: Lane) -> dict[str, Any]:
    def one(point: Any, multiplier: Any, lane: Lane) -> dict[str, Any]:
        active = (multiplier != 0) | (lane["low"] == lane["high"])
        bound = jnp.where(multiplier > 0, lane["high"], lane["low"])
        bound = jnp.where(active, bound, 0.0)
        size = len(point)

        def conditions(both: Any) -> tuple[Any, Any]:
            wrong = _conditions(program, both[:size], both[size:], lane, active, bound)
            return wrong, wrong

        def step(_: Any, both: Any) -> Any:
            slopes, wrong = jax.jacfwd(conditions, has_aux=True)(both)
            change = jnp.linalg.lstsq(slopes, wrong, rcond=1e-13)[0]
            there = both - change * jnp.minimum(1.0, 1.0 / jnp.max(jnp.abs(change[:size])))
            better = jnp.linalg.norm(conditions(there)[0]) < jnp.linalg.norm(wrong)
            return jnp.where(better, there, both)

        both = jax.lax.fori_loop(0, STEPS, step, jnp.concatenate([point, multiplier]))
        z, m = both[:size], both[size:]
        slope, measures = _slope_and_measures(program, z, m, lane)
        return {
            "points": z,
            "measures": measures,
            "multipliers": m,
            "outside": measures - jnp.clip(measures, lane["low"], lane["high"]),
            "slope": jnp.linalg.norm(slope),
            "values": jnp.dot(lane["weight"], measures),
            "signs": jnp.all((m * multiplier >= 0) | (lane["low"] == lane["high"])),
        }

    return jax.vmap(one)(points, multipliers, lanes)


# Jitted, so that they are traced once for all the places that call them.
@functools.partial(jax.jit, static_argnums=0)
def _slope_and_measures(program: CompiledProblem, point: Any, multiplier: Any, lane: Lane) -> tuple[Any, Any]:
    """The Lagrangian's gradient, and the measures it is made of."""
    return jax.grad(functools.partial(lagrangian, program), has_aux=True)(point, multiplier, lane)


@functools.partial(jax.jit, static_argnums=0)
def _conditions(program: CompiledProblem, point: Any, multiplier: Any, lane: Lane, active: Any, bound: Any) -> Any:
    """What is 0 at an optimum: the Lagrangian's gradient, and by how much active constraints are missed."""
    slope, measures = _slope_and_measures(program, point, multiplier, lane)
    return jnp.concatenate([slope, jnp.where(active, measures - bound, multiplier)])
