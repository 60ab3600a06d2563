"""Find other local optima of a fit that fit the runs as well as the best one.

A covariance describes one optimum. If all runs have 20 tokens per parameter, A/N^alpha + B/D^beta is a sum of two
powers of the same size. Exchanging the two terms gives an equal fit, but other losses at any other ratio. The curvature
at one optimum does not show the other optimum. The runs do not determine an answer on which such laws differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from moejax.fit.search.objective import FitObjective, law_at
from moejax.fit.uncertainty.intervals import left_by
from moejax.float64 import float64
from moejax.laws.law import coefficients

LIKELIHOOD_RATIO = 2.706
"""Limit on twice the log-likelihood difference of a local optimum: the 90 % point of chi-squared with one degree."""
EXACT = 1e-12
"""Objectives below this share of a constant prediction's objective count as 0; they differ only by when a search stops.
"""
MOST = 6
"""Maximum number of local optima that are kept; the most different ones are kept."""
APART = 0.05
"""Minimum distance of two local optima in some coefficient, in e-folds (in units for a coefficient of any sign)."""
STANDARD_ERRORS = 3.0
"""Standard errors beyond which an answer of another optimum lies outside what the fit's interval covers."""
NEGLIGIBLE = 1e-3
"""Relative difference that is ignored even if the standard error is smaller."""


def alternatives(
    objective: FitObjective,
    data: Any,
    point: Float[np.ndarray, " free"],
    value: float,
    ends: Float[np.ndarray, "ends free"],
    values: Float[np.ndarray, " ends"],
    runs: int,
) -> tuple[dict[str, float], ...]:
    """Return the coefficients of local optima that fit as well as the lowest, the most different ones first.

    Args:
      value: the objective at ``point``, in the unit of ``values``.
      runs: number of runs with a positive weight.
    """
    with np.errstate(invalid="ignore"):
        worse = left_by(runs, len(point)) * np.log(np.maximum(values, EXACT) / max(value, EXACT))
    # Coordinates at a bound of the search, or of coefficients that are nearly 0, are arbitrary, so clip them.
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


def laws_of(law: Any, others: Sequence[Mapping[str, float]]) -> Any:
    """Return one law whose coefficients are arrays with an entry per alternative."""
    each = {name: np.array([one.get(name, np.nan) for one in others], np.float64) for name in coefficients(law)}
    return dataclasses.replace(law, **each)


def apart(
    law: Any,
    others: Sequence[Mapping[str, float]],
    functional: Any,
    errors: Float[np.ndarray, " answers"] | None,
    scatter: float = 0.0,
) -> Bool[np.ndarray, " answers"]:
    """Return whether equally good laws change each number of a functional (flattened) beyond its standard error.

    Args:
      errors: standard errors that ignore the other laws; None or NaN where unknown.
      scatter: scatter of the runs around the law; the allowed relative difference of a number without a standard error.
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
