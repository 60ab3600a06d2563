"""Laws that fit the runs as well as the one that was found, at other ends of its search.

A covariance is that of one optimum. Where all runs have 20 tokens per parameter, A/N^alpha + B/D^beta is a sum of two
powers of one size: exchanged, they fit alike and predict other losses at any other ratio, and neither optimum's
curvature sees the other. What such laws answer differently the runs do not tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from moejax.fit.intervals import left_by
from moejax.fit.objective import FitObjective, law_at
from moejax.float64 import float64
from moejax.laws.law import coefficients

LIKELIHOOD_RATIO = 2.706
"""Twice the log likelihood by which another end may be worse: the 90 % point of chi-squared with one degree."""
EXACT = 1e-12
"""An objective below this share of that of one loss for all is 0 but for where a search stops."""
MOST = 6
"""Ends that are kept, the most different ones."""
APART = 0.05
"""E-folds (or units, of a coefficient of either sign) by which another end differs in some coefficient."""
STANDARD_ERRORS = 3.0
"""An answer of another end that is farther from the fit's than this is not one that the fit's interval speaks of."""
NEGLIGIBLE = 1e-3
"""Share of an answer by which other ends may differ from it, where the error is smaller still."""


def alternatives(
    objective: FitObjective,
    data: Any,
    point: Float[np.ndarray, " free"],
    value: float,
    ends: Float[np.ndarray, "ends free"],
    values: Float[np.ndarray, " ends"],
    runs: int,
) -> tuple[dict[str, float], ...]:
    """The coefficients of the ends of a search that fit as well as its lowest, the most different ones first.

    Args:
      value: the objective at ``point``, in the unit of ``values``.
      runs: how many count.
    """
    with np.errstate(invalid="ignore"):
        worse = left_by(runs, len(point)) * np.log(np.maximum(values, EXACT) / max(value, EXACT))
    # Of what is at an end of the search, or nearly 0, coordinates say nothing.
    near, others = (np.clip(at, -objective.widest, objective.widest) for at in (point, ends[worse <= LIKELIHOOD_RATIO]))
    found: list[dict[str, float]] = []
    far = np.abs(others - near).max(axis=1, initial=0.0)
    while len(found) < MOST and len(far) and far.max() > APART:
        chosen = int(far.argmax())
        with float64():
            law = law_at(objective, others[chosen], data)
        own = {name: float(one) for name, one in coefficients(law).items()}
        found.append({name: one for name, one in own.items() if name not in objective.without_effect})
        far = np.minimum(far, np.abs(others - others[chosen]).max(axis=1))
    return tuple(found)


def laws_of(law: Any, others: Sequence[Mapping[str, float]]) -> Any:
    """One law whose coefficients have an entry for each of the others."""
    each = {name: np.array([one.get(name, np.nan) for one in others], np.float64) for name in coefficients(law)}
    return dataclasses.replace(law, **each)


def apart(
    law: Any,
    others: Sequence[Mapping[str, float]],
    functional: Any,
    errors: Float[np.ndarray, " answers"] | None,
    scatter: float = 0.0,
) -> Bool[np.ndarray, " answers"]:
    """Whether laws that fit as well give each number of a functional, flat, beyond what its standard error says.

    Args:
      errors: standard errors where other laws are left out of account; None, or NaN, where there are none.
      scatter: of the runs around the law, by which a number without an error may differ.
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
    """The rule of ``apart``; a number that another law does not give is apart."""
    reach = np.maximum(STANDARD_ERRORS * np.nan_to_num(errors), NEGLIGIBLE * np.abs(middle))
    return ~(np.abs(answers - middle) <= reach).all(axis=0)
