"""Compute the Laplace posterior of a law: answers, their uncertainty, and the information from further runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from moejax.errors import UserError
from moejax.fit.runs import Runs, runs_from, sums_by_group, varies_within_a_group
from moejax.fit.search.objective import FitObjective, Squared, data_of
from moejax.fit.uncertainty.derivatives import Functional
from moejax.fit.uncertainty.undetermined import slopes_of_log_loss
from moejax.float64 import float64
from moejax.laws.design import Design, in_units, known, value_of
from moejax.laws.law import Law
from moejax.wording import argument, option_hint

PRIOR = 2.0
"""Prior standard deviation of a centered coefficient, in e-folds; linear for a coefficient without a fixed sign."""
UNIDENTIFIED_SHARE = 0.5
"""Share of an answer's variance due to the prior above which the runs do not identify the answer."""


class Undefined(UserError):
    """Error for an answer that is not a positive number under a law."""


@dataclass(frozen=True, kw_only=True)
class LaplacePosterior:
    """A law linearized in its search coordinates around a point, with Gaussian noise in log loss.

    ``free`` are the coordinates of ``FitObjective``, in which a coefficient with a fixed sign is a logarithm. Runs of
    a group share part of their noise. A model is an architecture of candidates; the table may already have runs of it.
    """

    weight: float
    """Akaike weight of the law among all given laws, from the runs so far."""
    noise: float
    """Standard deviation of log loss."""
    shared: float
    """Intraclass correlation: the share of the noise variance that is common to the runs of a group."""
    precision: Float[np.ndarray, "free free"]
    """Inverse covariance of the coordinates, from the prior and the runs so far."""
    slopes: Float[np.ndarray, "candidates free"]
    """Gradient of a candidate's log loss, divided by the standard deviation of its independent noise."""
    candidate_weights: Float[np.ndarray, " candidates"]
    """Number of runs with standard deviation ``noise`` that each candidate counts as; below 1 if it is noisier."""
    predicted: Float[np.ndarray, " candidates"]
    """Predicted log loss of the candidates."""
    scores: Float[np.ndarray, "runs free"]
    """Derivative of ``precision`` @ fitted coordinates with respect to each run's log loss."""
    fitted: Float[np.ndarray, " runs"]
    """Fitted log loss of the runs so far."""
    model: Int[np.ndarray, " candidates"]
    """Index of the model that a candidate trains."""
    model_runs: Float[np.ndarray, "runs models"]
    """Square root of each run's weight in the column of its model; 0 in other columns."""
    run_slopes: Float[np.ndarray, "runs free"]
    """Gradients of the runs so far, scaled like ``slopes``, times the square roots of their weights."""
    answers: Float[np.ndarray, " answers"]
    """Logarithms of the answers."""
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
        """Share of every answer's variance due to the prior; near 1 if the runs do not identify the answer."""
        moved = self.answer_slopes @ self.covariance
        return (moved**2).sum(axis=1) / PRIOR**2 / self.deviations**2

    @property
    def unidentified(self) -> tuple[bool, ...]:
        """Mask of the answers that the runs do not identify."""
        return tuple((self.prior_share > UNIDENTIFIED_SHARE).tolist())


def laplace_posterior(
    law: Law,
    runs: Runs,
    candidates: Design,
    answers: Sequence[Functional],
    *,
    noise: float,
    shared: float = 0.0,
    weight: float = 1.0,
    fixed: Mapping[str, float] | None = None,
    output: str = "loss",
    candidate_weights: Float[np.ndarray, " candidates"] | None = None,
) -> LaplacePosterior:
    """Return the posterior of a law given runs, linearized at ``law``.

    Args:
      law: the fitted law, or another law to linearize at.
      candidates: fields with an entry per candidate.
      answers: functionals with positive values.
      noise: standard deviation of log loss between runs of one design with weight 1.
      shared: share of the noise variance that is common to the runs of a group.
      fixed: fixed coefficients.
      candidate_weights: number of runs that each candidate counts as; None for 1 each.

    Raises:
      UserError: the noise is not positive.
      Undefined: an answer is not a positive number under this law.
    """
    if not noise > 0:
        raise UserError(f"The noise must be positive; got {noise:g}. Give {argument('noise')}.")
    fixed = dict(fixed or {})
    objective = FitObjective(type(law), Squared(), tuple(sorted(fixed)), output)
    data = data_of(objective, runs, fixed)
    count = max(np.size(value_of(candidates, name)) for name in objective.law.inputs)
    centered = in_units(runs_from(candidates, np.ones(count)).design, data["units"])
    new = {**data, "design": centered, "loss": np.ones(count)}
    with float64():
        point = np.asarray(objective.point_of(law, data))
        fitted, old = (np.asarray(part) for part in slopes_of_log_loss(objective, point, data))
        predicted, slopes = (np.asarray(part) for part in slopes_of_log_loss(objective, point, new))
        values, answer_slopes = (np.asarray(part) for part in _answers(objective, tuple(answers), point, data))
    if not (np.isfinite(values).all() and np.isfinite(answer_slopes).all()):
        around = option_hint(", or plan around published constants (--around)")
        raise Undefined(
            f"The requested quantity is not a positive number under the fitted {type(law).__name__}, so no run "
            f"can reduce its uncertainty; request a loss as the target{around}."
        )
    root, own = np.sqrt(runs.weight), noise * np.sqrt(1 - shared)
    rows = root[:, None] * old / own
    scores = _scores(rows, root, runs.group, shared / (1 - shared))
    weights = np.ones(count) if candidate_weights is None else candidate_weights
    model, groups = models(runs, candidates, count)
    return LaplacePosterior(
        weight=weight,
        noise=noise,
        shared=shared,
        precision=scores.T @ rows + np.eye(len(point)) / PRIOR**2,
        slopes=np.sqrt(weights)[:, None] * slopes / own,
        candidate_weights=weights,
        predicted=predicted,
        scores=root[:, None] * scores / own,
        fitted=fitted,
        model=model,
        model_runs=root[:, None] * (runs.group[:, None] == groups),
        run_slopes=rows,
        answers=values,
        answer_slopes=answer_slopes,
    )


def _scores(
    rows: Float[np.ndarray, "runs free"], root: Float[np.ndarray, " runs"], group: np.ndarray, ratio: float
) -> Float[np.ndarray, "runs free"]:
    """Return the score matrix S that expresses an unweighted fit of grouped runs as a sum over runs.

    With rows J, least squares has the covariance B⁻¹ · JᵀVJ · B⁻¹, where B = JᵀJ and V = I + ratio · (1 within a
    group). The covariance's inverse is Sᵀ · J, and Sᵀ · residuals equals this inverse times the fit. With J = Q·R, S =
    Q · (QᵀVQ)⁻¹ · R.
    """
    basis, size, turned = np.linalg.svd(rows, full_matrices=False)
    luck = sums_by_group(root[:, None] * basis, group)
    covariance = np.eye(len(size)) + ratio * luck.T @ luck
    return basis @ np.linalg.solve(covariance, size[:, None] * turned)


def models(
    runs: Runs, candidates: Design, count: int
) -> tuple[Int[np.ndarray, " candidates"], Int[np.ndarray, " models"]]:
    """Return the model index of every candidate, and the group of each model's runs so far (-1 for a new model).

    As in a table of runs, designs that differ only in the length of training belong to one model.
    """
    told_apart_by = [name for name in known(candidates) if not varies_within_a_group(name)]
    both = [name for name in told_apart_by if value_of(runs.design, name) is not None]

    def shapes(design: Design, names: Sequence[str], length: int) -> list[tuple[float, ...]]:
        values = [np.broadcast_to(np.asarray(value_of(design, name), float), length).tolist() for name in names]
        return list(zip(*values, strict=True)) if names else [()] * length

    group = dict(zip(shapes(runs.design, both, len(runs)), runs.group.tolist(), strict=True)) if both else {}
    met = [group.get(shape, -1) for shape in shapes(candidates, both, count)]
    # Models outside the table are distinguished by all known fields; without a size, every candidate is its own model.
    own = shapes(candidates, told_apart_by, count) if told_apart_by else [(float(i),) for i in range(count)]
    labels = [(one, ()) if one >= 0 else (-1, shape) for one, shape in zip(met, own, strict=True)]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.asarray([numbers[label] for label in labels]), np.asarray([one for one, _ in numbers])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _answers(
    objective: FitObjective, answers: tuple[Functional, ...], point: jax.Array, data: Mapping[str, Any]
) -> tuple[jax.Array, jax.Array]:
    def logs(at: jax.Array) -> jax.Array:
        law = objective.law_at(at, data)
        return jnp.log(jnp.stack([jnp.asarray(answer(law), float) for answer in answers]))

    return logs(point), jax.jacrev(logs)(point)
