"""A law as the runs so far tell it: its answer, how uncertain that is, and what every further run would add."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.derivatives import Functional
from moejax.fit.identify import slopes_of_log_loss
from moejax.fit.objective import FitObjective, Penalty, Squared, data_of
from moejax.fit.runs import Runs, runs_from
from moejax.float64 import float64
from moejax.laws.design import Design, in_units

PRIOR = 2.0
"""Standard deviation, in e-folds (units, for a coefficient of either sign), of a centred coefficient before any run."""
UNIDENTIFIED_SHARE = 0.5
"""An answer of whose variance more than this share stems from the prior is not identified by the runs."""


class Undefined(UserError):
    """What is asked is no positive number under a law."""


@dataclass(frozen=True, kw_only=True)
class LaplacePosterior:
    """One law, linear in its searched coordinates around a point, with Gaussian noise in log loss.

    ``free`` are the coordinates of ``fit.objective.FitObjective``, in which a coefficient of one sign is a logarithm.
    """

    law: Any
    weight: float
    """Akaike's weight of the law among those that are asked, by the runs so far."""
    noise: float
    """Standard deviation of log loss."""
    precision: Float[np.ndarray, "free free"]
    """Inverse covariance of the coordinates, from the prior and the runs so far."""
    slopes: Float[np.ndarray, "candidates free"]
    """Gradient of a candidate's log loss over the noise; its outer product is the run's Fisher information."""
    predicted: Float[np.ndarray, " candidates"]
    """Log loss."""
    run_slopes: Float[np.ndarray, "runs free"]
    """The same for the runs so far, by the root of their weights."""
    fitted: Float[np.ndarray, " runs"]
    answers: Float[np.ndarray, " answers"]
    """What is asked, as logarithms."""
    answer_slopes: Float[np.ndarray, "answers free"]

    @property
    def covariance(self) -> Float[np.ndarray, "free free"]:
        """Covariance of the coordinates."""
        return np.linalg.inv(self.precision)

    @property
    def deviations(self) -> Float[np.ndarray, " answers"]:
        """Standard deviation of the answers' logarithms."""
        return np.sqrt(np.einsum("af,fg,ag->a", self.answer_slopes, self.covariance, self.answer_slopes))

    @property
    def prior_share(self) -> Float[np.ndarray, " answers"]:
        """Share of every answer's variance that the prior supplies: near 1, the runs do not identify it."""
        moved = self.answer_slopes @ self.covariance
        return (moved**2).sum(axis=1) / PRIOR**2 / self.deviations**2


def laplace_posterior(
    law: Any,
    runs: Runs,
    candidates: Design,
    answers: Sequence[Functional],
    *,
    noise: float,
    weight: float = 1.0,
    fixed: Mapping[str, float] | None = None,
    penalty: Penalty | None = None,
    output: str = "loss",
) -> LaplacePosterior:
    """What runs tell of a law around a point.

    Args:
      law: the fitted law, or the one to be linear around.
      candidates: fields with an entry per candidate.
      answers: positive numbers taken from a law.
      noise: standard deviation of log loss between runs of one design.
      fixed: coefficients that are given.

    Raises:
      UserError: the noise is not above 0.
      Undefined: an answer is not a positive number under this law.
    """
    if not noise > 0:
        raise UserError(f"The noise is {noise:g}; without scatter every run would tell everything. Give --noise.")
    fixed = dict(fixed or {})
    objective = FitObjective(type(law), penalty or Squared(), tuple(sorted(fixed)), output)
    data = data_of(objective, runs, fixed)
    count = max(np.size(getattr(candidates, name)) for name in objective.law.inputs)
    centred = in_units(runs_from(candidates, np.ones(count)).design, data["units"])
    new = {**data, "design": centred, "loss": np.ones(count)}
    with float64():
        point = np.asarray(objective.point_of(law, data))
        fitted, old = (np.asarray(part) for part in slopes_of_log_loss(objective, point, data))
        predicted, slopes = (np.asarray(part) for part in slopes_of_log_loss(objective, point, new))
        values, answer_slopes = (np.asarray(part) for part in _answers(objective, tuple(answers), point, data))
    if not (np.isfinite(values).all() and np.isfinite(answer_slopes).all()):
        raise Undefined(
            f"Under the fitted {type(law).__name__} what is asked is no positive number, so no run can be said to make "
            f"it more certain; ask for a loss (--target loss:…), or plan around published constants (--around)."
        )
    root = np.sqrt(runs.weight)[:, None] / noise
    return LaplacePosterior(
        law=law,
        weight=weight,
        noise=noise,
        precision=(root * old).T @ (root * old) + np.eye(len(point)) / PRIOR**2,
        slopes=slopes / noise,
        predicted=predicted,
        run_slopes=root * old,
        fitted=fitted,
        answers=values,
        answer_slopes=answer_slopes,
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answers(objective: FitObjective, answers: tuple[Functional, ...], point: Any, data: Any) -> tuple[Any, Any]:
    def logs(at: Any) -> Any:
        law = objective.law_at(at, data)
        return jnp.log(jnp.stack([jnp.asarray(answer(law), float) for answer in answers]))

    return logs(point), jax.jacrev(logs)(point)
