"""Find directions of a law's coefficients that the runs do not determine; answers along them have no uncertainty."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from moejax.fit.search.objective import FitObjective, law_at
from moejax.fit.uncertainty.alternatives import are_apart
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.law import coefficients
from moejax.wording import command

FLAT = 1e-13
"""Share of the largest curvature below which a direction counts as flat."""
MOVED = 1e-5
"""Relative change per e-fold of a direction from which an answer depends on it."""
FARTHEST = 8.0
"""Multiple of the bound beyond which a step of a coordinate changes its coefficient by less than float precision."""

Direction = Mapping[str, float]
"""Change of each fitted coefficient along a direction, per e-fold of coefficients of one sign."""


def undetermined(sizes: Float[np.ndarray, " directions"]) -> Bool[np.ndarray, " directions"]:
    """Return a mask of the flat principal directions of the residuals' derivatives, by singular values."""
    return ~(sizes > np.sqrt(FLAT) * sizes.max(initial=0.0))


def directions_of(
    objective: FitObjective, data: Any, point: Float[np.ndarray, " free"], flat: Float[np.ndarray, "directions free"]
) -> tuple[dict[str, float], ...]:
    """Return directions of the search coordinates as steps of the law's coefficients."""
    bounded = objective.logarithmic
    # Near a bound of the search a coordinate hardly changes its coefficient; at the bound not at all.
    farthest = FARTHEST * objective.widest
    at = np.where(bounded, np.clip(point, -farthest, farthest), point)
    moved = np.where(bounded, 1 - np.tanh(at / objective.widest) ** 2, 1.0)
    directions = []
    for direction in flat:
        with float64():
            step = direction / np.linalg.norm(direction * moved)
            _, change = jax.jvp(lambda one: law_at(objective, one, data), (at,), (step,))
        steps = {name: float(value) for name, value in coefficients(change).items() if name in objective.free}
        if np.isfinite([*steps.values()]).all():
            directions.append(steps)
    return tuple(directions)


def moves(law: Any, directions: Sequence[Direction], functional: Any) -> Bool[np.ndarray, "answers directions"]:
    """Return whether each number of a flattened functional depends on each direction, to first order."""

    def numbers(one: Any) -> Any:
        return ravel_pytree(functional(one))[0]

    with float64():
        exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), law)
        value, slopes = jax.jit(lambda one: (numbers(one), jax.jacrev(numbers)(one)))(exact)
    names = [*coefficients(law)]
    steps = np.array([[direction.get(name, 0.0) for name in names] for direction in directions])
    slope = np.stack([np.asarray(one) for one in coefficients(slopes).values()], axis=1)
    parts = np.where(steps != 0, slope[:, None, :] * steps, 0.0)
    # Changes that cancel up to rounding do not count.
    size = np.abs(np.asarray(value))[:, None] + np.abs(parts).sum(axis=2)
    return np.abs(parts.sum(axis=2)) > MOVED * size


def coefficients_along(law: Any, directions: Sequence[Direction]) -> list[tuple[str, ...]]:
    """Return the coefficients that change along each direction."""
    values = {name: abs(float(value)) for name, value in coefficients(law).items()}
    return [
        tuple(name for name, step in one.items() if abs(step) > MOVED * (values[name] + abs(step)))
        for one in directions
    ]


def how_to_determine(law: Any, names: Sequence[str]) -> str:
    """Return advice for undetermined coefficients, with the option that fixes one of them; empty if there are none.

    The example is a coefficient without a unit, because a published value may hold here too. The irreducible loss of
    other data does not.
    """
    if not names:
        return ""
    described = {field.name: field.metadata for field in dataclasses.fields(law)}
    plain = [name for name in names if not described[name].get("dimension") and name != "irreducible"]
    name = (plain or list(names))[0]
    every = next((PUBLISHED[key] for key, known in LAWS.items() if known is type(law)), {})
    published = next(iter(every.values()), None)
    if published is None or name not in plain:
        option = command("--fix", f"{name}=VALUE")
    else:
        option = f"{command('--fix', f'{name}={float(getattr(published.law, name)):.4g}')} ({published.source})"
    return (
        f"What the runs leave open can be held at a value that is known, as by {option}; or train runs that differ "
        f"where it matters."
    )


STEP = 0.01
"""Step in e-folds of a law along a direction, to test whether an answer changes."""
BENT = 1e-3
"""Relative change per step below which an answer only changes beyond first order."""


@dataclass(frozen=True)
class Probes:
    """Laws a small step to either side along each undetermined direction, and laws that fit equally well.

    They are evaluated with batches of laws: an answer that differs between the two sides, or under a law that fits
    equally well, is not determined.
    """

    law: Any
    directions: Sequence[Direction]
    alternatives: Sequence[Mapping[str, float]] = ()
    """Coefficients of laws that fit equally well (``moejax.fit.uncertainty.alternatives``)."""

    @property
    def laws(self) -> Any:
        """Laws as one law with array coefficients: both sides of each direction, then those that fit equally well.

        Coefficients of one sign are moved in their logarithms. A term that is constant along a direction then stays
        constant to higher order.
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
        """Return whether an answer, given its value under each of the laws, is not determined.

        It is not determined if it changes along a direction. Nor is it if a law that fits equally well gives no value,
        or one outside its interval.
        """
        sides, others = np.split(np.asarray(answers, np.float64), [2 * len(self.directions)])
        one, other = sides.reshape(-1, 2).T
        with np.errstate(invalid="ignore"):
            still = np.abs(one - other) <= 2 * STEP * BENT * (np.abs(one) + np.abs(other)) / 2
            differs = are_apart(np.array([interval.middle]), others[:, None], np.array([interval.deviation]))
        return not bool(still.all()) or bool(differs.any())
