"""Find coefficients and combinations that the runs do not determine, and other optima that fit equally well.

A number has no standard error if it changes along an undetermined direction or between equally good laws. For example,
if all runs have 20 tokens per parameter, both terms of A/N^alpha + B/D^beta are powers of the same size. Exchanging
them fits equally well, but predicts different losses at other ratios of tokens to parameters. The curvature at one
optimum does not show the other optimum.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from moejax.fit.search.objective import Array, FitObjective, law_at, slopes_of_residuals
from moejax.fit.uncertainty.noise import left_by, noise
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import value_of
from moejax.laws.law import Law, coefficients
from moejax.wording import argument

LIKELIHOOD_RATIO = 2.706
"""Limit on twice a local optimum's log-likelihood deficit: the 90 % quantile of chi-squared with one degree."""
EXACT = 1e-12
"""Share of a constant prediction's objective below which an objective counts as 0."""
MOST = 6
"""Maximum number of local optima to keep; the most different optima are kept."""
APART = 0.05
"""Minimum distance of two local optima in some coefficient, in e-folds (linear without a fixed sign)."""
STANDARD_ERRORS = 3.0
"""Difference between two optima, in standard errors, above which a number counts as different."""
NEGLIGIBLE = 1e-3
"""Relative difference that is ignored even if the standard error is smaller."""


def alternatives(
    objective: FitObjective,
    data: Mapping[str, Any],
    point: Float[np.ndarray, " free"],
    value: float,
    ends: Float[np.ndarray, "ends free"],
    values: Float[np.ndarray, " ends"],
    runs: int,
) -> tuple[dict[str, float], ...]:
    """Return the coefficients of local optima that fit equally well, each keyed by name, the most different optima
    first.

    Args:
      value: the objective at ``point``, in the unit of ``values``.
      runs: number of runs with a positive weight.
    """
    with np.errstate(invalid="ignore"):
        worse = left_by(runs, len(point)) * np.log(np.maximum(values, EXACT) / max(value, EXACT))
    # Coordinates at a bound, or of coefficients that are nearly 0, are arbitrary, so clip them.
    near, others = (np.clip(at, -objective.widest, objective.widest) for at in (point, ends[worse <= LIKELIHOOD_RATIO]))
    laws: list[dict[str, float]] = []
    far = np.abs(others - near).max(axis=1, initial=0.0)
    while len(laws) < MOST and len(far) and far.max() > APART:
        chosen = int(far.argmax())
        with float64():
            law = law_at(objective, others[chosen], data)
        own = {name: float(one) for name, one in coefficients(law).items()}
        laws.append({name: one for name, one in own.items() if name not in objective.without_effect})
        far = np.minimum(far, np.abs(others - others[chosen]).max(axis=1))
    return tuple(laws)


def laws_of(law: Law, others: Sequence[Mapping[str, float]]) -> Any:
    """Return a law whose coefficients are arrays with an entry per alternative."""
    each = {name: np.array([one.get(name, np.nan) for one in others], np.float64) for name in coefficients(law)}
    return dataclasses.replace(law, **each)


def apart(
    law: Law,
    others: Sequence[Mapping[str, float]],
    functional: Callable[[Any], Any],
    errors: Float[np.ndarray, " answers"] | None,
    scatter: float = 0.0,
) -> Bool[np.ndarray, " answers"]:
    """Return whether each number of a functional (flattened) differs significantly between equally good laws.

    Args:
      errors: standard errors that ignore the other laws; None or NaN if unknown.
      scatter: scatter of the runs around the law, used as the relative error of numbers without a standard error.
    """

    def numbers(one: Any) -> Any:
        return ravel_pytree(functional(one))[0]

    with float64():
        middle = np.asarray(numbers(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), law)))
        answers = np.asarray(jax.jit(jax.vmap(numbers))(laws_of(law, others)))
    known = np.full(middle.shape, np.nan) if errors is None else errors
    return are_apart(middle, answers, np.where(np.isfinite(known), known, scatter * np.abs(middle)))


def are_apart(
    middle: Float[np.ndarray, " answers"],
    answers: Float[np.ndarray, "others answers"],
    errors: Float[np.ndarray, " answers"],
) -> Any:
    """Apply the rule of ``apart``; a number that another law does not define counts as different."""
    reach = np.maximum(STANDARD_ERRORS * np.nan_to_num(errors), NEGLIGIBLE * np.abs(middle))
    return ~(np.abs(answers - middle) <= reach).all(axis=0)


FLAT = 1e-13
"""Share of the largest curvature below which a direction counts as flat."""
MOVED = 1e-5
"""Relative change per e-fold along a direction above which a number depends on the direction."""
FARTHEST = 8.0
"""Multiple of the bound beyond which steps of a coordinate change its coefficient by less than float precision."""

Direction = Mapping[str, float]
"""Change of each fitted coefficient along a direction, per e-fold of the coefficients with a fixed sign."""


def undetermined(sizes: Float[np.ndarray, " directions"]) -> Bool[np.ndarray, " directions"]:
    """Return a mask of the flat principal directions, from the singular values of the residuals' derivatives."""
    return ~(sizes > np.sqrt(FLAT) * sizes.max(initial=0.0))


def directions_of(
    objective: FitObjective,
    data: Mapping[str, Any],
    point: Float[np.ndarray, " free"],
    flat: Float[np.ndarray, "directions free"],
) -> tuple[dict[str, float], ...]:
    """Return directions of the search coordinates as steps of the law's coefficients, keyed by name."""
    bounded = objective.logarithmic
    # Near a bound of the search a coordinate has little effect on its coefficient; at the bound it has none.
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


def moves(law: Law, directions: Sequence[Direction], functional: Any) -> Bool[np.ndarray, "answers directions"]:
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


def coefficients_along(law: Law, directions: Sequence[Direction]) -> list[tuple[str, ...]]:
    """Return the coefficients that change along each direction."""
    values = {name: abs(float(value)) for name, value in coefficients(law).items()}
    return [
        tuple(name for name, step in one.items() if abs(step) > MOVED * (values[name] + abs(step)))
        for one in directions
    ]


def how_to_determine(law: Law, names: Sequence[str]) -> str:
    """Return advice for undetermined coefficients, with an option that fixes one of them; empty if there are none.

    The example is a coefficient without a unit, because its published value may hold for other data. A published
    irreducible loss does not.
    """
    if not names:
        return ""
    described = {field.name: field.metadata for field in dataclasses.fields(law)}
    plain = [name for name in names if not described[name].get("dimension") and name != "irreducible"]
    name = (plain or list(names))[0]
    every = next((PUBLISHED[key] for key, known in LAWS.items() if known is type(law)), {})
    published = next(iter(every.values()), None)
    if published is None or name not in plain:
        option = argument("fixed", {name: "VALUE"})
    else:
        option = f"{argument('fixed', {name: f'{float(getattr(published.law, name)):.4g}'})} ({published.source})"
    return (
        f"Fix an undetermined coefficient at a known value, for example with {option}; or train runs that determine it."
    )


STEP = 0.01
"""Step along a direction, in e-folds, to test whether a number changes."""
BENT = 1e-3
"""Relative change per step below which a number has no first-order change."""


@dataclass(frozen=True)
class Probes:
    """Laws a small step to each side along each undetermined direction, and laws that fit equally well.

    The probes are evaluated together with drawn or resampled laws. A number that differs between the two sides, or
    under a law that fits equally well, is not determined.
    """

    law: Law
    directions: Sequence[Direction]
    alternatives: Sequence[Mapping[str, float]] = ()
    """Coefficients of laws that fit equally well (``moejax.fit.uncertainty.undetermined``)."""

    @property
    def laws(self) -> Any:
        """Law with array coefficients: both sides of each direction, then the laws that fit equally well.

        Coefficients with a fixed sign are moved in their logarithms, so that a term that is constant along a direction
        stays constant to higher order.
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
        """Return whether a number with these values under the laws is not determined.

        A number is not determined if it changes along a direction, or if its value under a law that fits equally well
        is undefined or differs significantly.
        """
        sides, others = np.split(np.asarray(answers, np.float64), [2 * len(self.directions)])
        one, other = sides.reshape(-1, 2).T
        with np.errstate(invalid="ignore"):
            still = np.abs(one - other) <= 2 * STEP * BENT * (np.abs(one) + np.abs(other)) / 2
            differs = are_apart(np.array([interval.middle]), others[:, None], np.array([interval.deviation]))
        return not bool(still.all()) or bool(differs.any())


NO_EFFECT = 1e-7
"""Change of log loss per e-fold (linear for coefficients without a fixed sign) below which a coefficient has no effect.
"""
NOT_MOVED = 1e-9
"""Distance from the initial guess below which a coefficient counts as not moved by the search, and so as
unidentified."""
PARTICIPATES = 0.3
"""Component of a unit direction above which a coefficient is listed as part of the direction."""


@dataclass(frozen=True, kw_only=True)
class Identified:
    """The conditioning and identifiability of a fit at its optimum."""

    condition_number: float
    """Condition number of JᵀWJ: J is the Jacobian of log loss in the coordinates of the search, and W the runs'
    weights."""
    unidentified: dict[str, str]
    """Coefficients that the data do not determine, with the reason."""
    sentences: tuple[str, ...]
    """Directions that the table does not determine, as sentences."""
    undetermined: tuple[dict[str, float], ...]
    """Directions along which no run's prediction changes (``undetermined.directions_of``)."""


def identify(
    objective: FitObjective, data: Mapping[str, Any], weights: np.ndarray, point: np.ndarray, start: np.ndarray | None
) -> Identified:
    """Return which coefficients the runs determine at an optimum that was reached from the initial guess ``start``."""
    with float64():
        predicted, slopes = (np.asarray(part) for part in slopes_of_log_loss(objective, point, data))
    kept = np.asarray(weights) > 0
    jacobian = np.sqrt(np.asarray(weights)[kept])[:, None] * slopes[kept]
    unidentified = {}
    for i, name in enumerate(objective.free):
        if np.abs(slopes[kept, i]).max() < NO_EFFECT:
            unidentified[name] = "no prediction depends on it at the end of the search"
        elif start is not None and abs(point[i] - start[i]) < NOT_MOVED:
            unidentified[name] = "the search did not move it from its initial guess"
    sizes, directions = np.linalg.svd(jacobian, full_matrices=False)[1:]
    flat = undetermined(sizes)
    scatter = noise(predicted - np.log(data["loss"]), np.asarray(weights), len(objective.free))
    # An e-fold along these directions changes the predictions by less than the residual scatter. If several directions
    # involve the same coefficients, the last and widest direction is kept.
    open_ones = {
        _parts(objective, direction): np.inf if still else scatter / max(size, 1e-300)
        for size, direction, still in zip(sizes, directions, flat, strict=True)
        if size < scatter or still
    }
    sentences = [_in_words(parts, spread) for parts, spread in open_ones.items()]
    if sentences or unidentified:
        sentences += [
            f"{name} is the same in all runs, so its effect cannot be separated from a constant."
            for name in objective.law.inputs
            if np.ptp(np.asarray(value_of(data["design"], name))[kept]) == 0
        ]
    # The singular value of a vanished coefficient may be 1e-200.
    with np.errstate(over="ignore"):
        condition = (
            float((sizes[0] / sizes[-1]) ** 2) if sizes[-1] > 0 and len(sizes) == len(objective.free) else float("inf")
        )
    if len(jacobian) < len(objective.free):
        sentences.append(f"{len(jacobian)} runs cannot determine {len(objective.free)} coefficients.")
    return Identified(
        condition_number=condition,
        unidentified=unidentified,
        sentences=tuple(sentences),
        undetermined=directions_of(objective, data, point, directions[flat]),
    )


def _parts(objective: FitObjective, direction: np.ndarray) -> tuple[str, ...]:
    return tuple(name for name, share in zip(objective.free, direction, strict=True) if abs(share) > PARTICIPATES)


def _in_words(parts: Sequence[str], spread: float) -> str:
    # A coefficient known only to a factor above 1000 counts as not determined.
    is_known = spread < np.log(1000)
    if len(parts) == 1 and not is_known:
        return f"The table does not determine {parts[0]}."
    width = f"determined only to about a factor e^{spread:.3g}" if is_known else "not determined"
    if len(parts) == 1:
        return f"{parts[0]} is {width} by this table."
    return f"{', '.join(parts[:-1])} and {parts[-1]} cannot be separated by this table ({width})."


def slopes_of_log_loss(objective: FitObjective, point: Array, data: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the log prediction of every run, and its Jacobian with respect to the coordinates."""
    # With losses of 1, residuals equal log predictions, so the compiled program for residuals is reused.
    return slopes_of_residuals(objective, "log", point, {**data, "loss": np.ones_like(data["loss"])})
