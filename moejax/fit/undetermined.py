"""Directions of a law's coefficients along which no run moves: what depends on them has a value and no uncertainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from moejax.fit.alternatives import are_apart
from moejax.fit.objective import FitObjective, law_at
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.law import coefficients
from moejax.wording import command

FLAT = 1e-13
"""Share of the largest curvature below which a direction has none."""
MOVED = 1e-5
"""A number moves along a direction if an e-fold of it changes the number by more than this share."""
FARTHEST = 8.0
"""Times its widest, beyond which a step of a coordinate moves its coefficient by nothing that a float holds."""

Direction = Mapping[str, float]
"""What a step along a direction adds to each fitted coefficient, per e-fold of those that have a sign."""


def undetermined(sizes: Float[np.ndarray, " directions"]) -> Bool[np.ndarray, " directions"]:
    """Which principal directions of the runs' slopes have none, by their singular values."""
    return ~(sizes > np.sqrt(FLAT) * sizes.max(initial=0.0))


def directions_of(
    objective: FitObjective, data: Any, point: Float[np.ndarray, " free"], flat: Float[np.ndarray, "directions free"]
) -> tuple[dict[str, float], ...]:
    """Directions of the searched coordinates as steps of the law's coefficients."""
    bounded = objective.logarithmic
    # Near an end of what is searched a coordinate hardly moves its coefficient; at the end not at all.
    farthest = FARTHEST * objective.widest
    at = np.where(bounded, np.clip(point, -farthest, farthest), point)
    moved = np.where(bounded, 1 - np.tanh(at / objective.widest) ** 2, 1.0)
    found = []
    for direction in flat:
        with float64():
            step = direction / np.linalg.norm(direction * moved)
            _, change = jax.jvp(lambda one: law_at(objective, one, data), (at,), (step,))
        steps = {name: float(value) for name, value in coefficients(change).items() if name in objective.free}
        if np.isfinite([*steps.values()]).all():
            found.append(steps)
    return tuple(found)


def moves(law: Any, directions: Sequence[Direction], functional: Any) -> Bool[np.ndarray, "answers directions"]:
    """Whether every number of a functional, flat, moves along each direction, to first order."""

    def numbers(one: Any) -> Any:
        return ravel_pytree(functional(one))[0]

    with float64():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), law)
        value, slopes = jax.jit(lambda one: (numbers(one), jax.jacrev(numbers)(one)))(exact)
    names = [*coefficients(law)]
    steps = np.array([[direction.get(name, 0.0) for name in names] for direction in directions])
    slope = np.stack([np.asarray(one) for one in coefficients(slopes).values()], axis=1)
    parts = np.where(steps != 0, slope[:, None, :] * steps, 0.0)
    # What cancels but for rounding does not move.
    size = np.abs(np.asarray(value))[:, None] + np.abs(parts).sum(axis=2)
    return np.abs(parts.sum(axis=2)) > MOVED * size


def coefficients_along(law: Any, directions: Sequence[Direction]) -> list[tuple[str, ...]]:
    """By direction, the coefficients that move along it."""
    values = {name: abs(float(value)) for name, value in coefficients(law).items()}
    return [
        tuple(name for name, step in one.items() if abs(step) > MOVED * (values[name] + abs(step)))
        for one in directions
    ]


def how_to_determine(law: Any, names: Sequence[str]) -> str:
    """What to do where runs leave coefficients open, with the option that holds one of them; empty if there are none.

    The example is of a coefficient without a unit, as others' value of it may hold here too; the loss of other data
    that nothing removes does not.
    """
    if not names:
        return ""
    described = {field.name: field.metadata for field in dataclasses.fields(law)}
    plain = [name for name in names if not described[name].get("dimension") and name != "irreducible"]
    name = (plain or list(names))[0]
    every = next((PUBLISHED[key] for key, known in LAWS.items() if known is type(law)), {})
    found = next(iter(every.values()), None)
    if found is None or name not in plain:
        option = command("--fix", f"{name}=VALUE")
    else:
        option = f"{command('--fix', f'{name}={float(getattr(found.law, name)):.4g}')} ({found.source})"
    return (
        f"What the runs leave open can be held at a value that is known, as by {option}; or train runs that differ "
        f"where it matters."
    )


STEP = 0.01
"""E-folds by which a law is moved to see whether an answer moves with it."""
BENT = 1e-3
"""Share of a step by which an answer that does not move to first order may still change."""


@dataclass(frozen=True)
class Probes:
    """A law a little to either side along each direction that runs do not determine, and laws that fit as well.

    What is asked of many laws at once, as a design is, is asked of these too: an answer that changes from one side to
    the other, or that a law which fits as well gives otherwise, is not determined.
    """

    law: Any
    directions: Sequence[Direction]
    alternatives: Sequence[Mapping[str, float]] = ()
    """Coefficients of laws that fit as well (``moejax.fit.alternatives``)."""

    @property
    def laws(self) -> Any:
        """One law whose coefficients have an entry for each: either side of a direction, one after the other; then
        those that fit as well.

        Coefficients of one sign are moved as their logarithms: a term that keeps its value along a direction does so
        to higher order than if a scale took the same step itself.
        """
        sides = [(direction, side * STEP) for direction in self.directions for side in (1, -1)]
        signs = {field.name: field.metadata.get("sign") for field in dataclasses.fields(self.law)}
        beside = {}
        for name, value in coefficients(self.law).items():
            steps = np.asarray([size * direction.get(name, 0.0) for direction, size in sides])
            moved = value + steps if signs[name] == "any" or not value else value * np.exp(steps / value)
            beside[name] = np.concatenate([moved, [other[name] for other in self.alternatives]])
        return dataclasses.replace(self.law, **beside)

    def moved(self, answers: Any, interval: Interval) -> bool:
        """Whether an answer, by what it is under each of the laws, changes along any direction, or lies beyond the
        interval that it has under likely laws; or has none there."""
        sides, others = np.split(np.asarray(answers, np.float64), [2 * len(self.directions)])
        one, other = sides.reshape(-1, 2).T
        with np.errstate(invalid="ignore"):
            still = np.abs(one - other) <= 2 * STEP * BENT * (np.abs(one) + np.abs(other)) / 2
            differs = are_apart(np.array([interval.middle]), others[:, None], np.array([interval.deviation]))
        return not bool(still.all()) or bool(differs.any())
