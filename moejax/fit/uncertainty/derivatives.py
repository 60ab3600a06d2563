"""Differentiate a fit at its optimum: derivatives, curvature, and the influence of runs by implicit derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult, check_runs_of
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law, objective_of
from moejax.fit.search.objective import FitObjective, Penalty, data_of, law_at, slopes_of_residuals
from moejax.fit.search.starts import WarmStart
from moejax.fit.uncertainty.noise import left_by, median_scale
from moejax.fit.uncertainty.undetermined import FLAT
from moejax.float64 import float64

Functional = Callable[[Any], Any]
"""A function from a law to a number or a pytree of numbers, such as a coefficient, an optimal size or a loss."""


@dataclass(frozen=True, kw_only=True)
class FitDerivatives:
    """The optimum of a fit in search coordinates, and the derivatives at the optimum."""

    objective: FitObjective
    data: Mapping[str, Any]
    weight: Float[np.ndarray, " runs"]
    point: Float[np.ndarray, " free"]
    jacobian: Float[np.ndarray, "runs free"]
    """Derivative of every run's residual (in the penalty's unit) with respect to the coordinates."""
    psi: Float[np.ndarray, " runs"]
    """Derivative of every run's penalty with respect to its residual."""
    stiffness: Float[np.ndarray, " runs"]
    """Expected derivative of every run's ``psi`` with respect to its residual: 2 for squared residuals; for Huber's
    penalty, the probability that the residual is within delta."""

    @functools.cached_property
    def _second(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Computed on demand, because standard errors do not need it and it takes long to compile.
        with float64():
            hessian, scores, bends = _second_derivatives(self.objective, self.point, self.data, self.weight)
        return np.asarray(hessian), np.asarray(scores), np.asarray(bends)

    @property
    def hessian(self) -> Float[np.ndarray, "free free"]:
        """Hessian of the weighted sum of penalties."""
        return self._second[0]

    @property
    def scores(self) -> Float[np.ndarray, "runs free"]:
        """Gradient of every run's unweighted penalty."""
        return self._second[1]

    @property
    def bends(self) -> Float[np.ndarray, "runs free"]:
        """Derivative of ``scores`` with respect to each run's loss (per nat)."""
        return self._second[2]

    @property
    def curvature(self) -> Float[np.ndarray, "free free"]:
        """Expected Hessian JᵀWJ: J is ``jacobian``, and W holds weight times stiffness of the runs.

        For Huber's penalty, the exact Hessian counts only the few runs within delta, through which the fit passes.
        Standard errors from it are too small and too noisy. A common stiffness for all runs would be wrong if some runs
        scatter more than others, like Chinchilla's points.
        """
        return (self.jacobian.T * (self.weight * self.stiffness)) @ self.jacobian

    @property
    def dispersion(self) -> float:
        """Mean of psi², corrected for the degrees of freedom, divided by the mean stiffness; 2·σ² for squared residuals
        with standard deviation σ."""
        runs = int((self.weight > 0).sum())
        degrees_of_freedom = left_by(runs, len(self.point)) / max(runs, 1)
        square, stiffness = (float(np.average(part, weights=self.weight)) for part in (self.psi**2, self.stiffness))
        return square / stiffness / degrees_of_freedom

    def evaluate(self, functional: Functional) -> Float[np.ndarray, " answers"]:
        """Return a functional's values at the optimum, flattened."""
        with float64():
            return np.asarray(ravel_pytree(functional(law_at(self.objective, self.point, self.data)))[0])

    def slopes(self, functional: Functional) -> Float[np.ndarray, "answers free"]:
        """Return the derivative of a functional with respect to the coordinates."""
        with float64():
            return np.asarray(_slopes(self.objective, functional, self.point, self.data))

    def solve(self, right: Float[np.ndarray, "free columns"]) -> Float[np.ndarray, "free columns"]:
        """Return the inverse Hessian times ``right``, excluding directions of zero curvature, which the runs do not
        determine."""
        return np.linalg.lstsq(self.hessian, right, rcond=FLAT)[0]


def derivatives(result: FitResult, runs: Runs, *, past_zero: bool = False) -> FitDerivatives:
    """Return the optimum of a fit with its derivatives.

    Args:
      past_zero: True to use a linear scale for coefficients near 0, because predictions do not depend on their
        logarithms there. A coefficient that is fitted as 0 may have another true value, for which the other
        coefficients compensate. The standard errors of the others are correct only if this coefficient has a standard
        error too.

    Raises:
      UserError: the fit was made to other runs.
    """
    check_runs_of(result, runs)
    objective = objective_of(result)
    data = data_of(objective, runs, result.fixed)
    with float64():
        point = np.asarray(objective.point_of(result.law, data))
        if past_zero and (nearly := objective.near_zero(point)).any():
            names = tuple(name for name, gone in zip(objective.free, nearly, strict=True) if gone)
            objective = replace(objective, plain=names)
            point = np.asarray(objective.point_of(result.law, data))
        slopes = slopes_of_residuals(objective, objective.penalty.residual, point, data)
        residual, jacobian = (np.asarray(x) for x in slopes)
        # A run of weight 0 may have a NaN log prediction, and 0 times NaN is NaN.
        kept = runs.weight > 0
        jacobian, residual = np.where(kept[:, None], jacobian, 0.0), np.where(kept, residual, 0.0)
    psi, stiffness = psi_and_stiffness(objective.penalty, residual, runs.weight, len(point))
    return FitDerivatives(
        objective=objective,
        data=data,
        weight=runs.weight,
        point=point,
        jacobian=jacobian,
        psi=psi,
        stiffness=stiffness,
    )


NODES = scipy.special.ndtri((np.arange(200) + 0.5) / 200)
"""Equally likely values of a standard normal variable."""


SMOOTHED = 2**14
"""Number of residuals smoothed at once; a full matrix of runs by nodes would dominate the memory of a fit."""
WIDTH = 1.25
"""Standard deviation of the kernel, as a multiple of the residuals' scale / cube root of the degrees of freedom.

This is the bandwidth of Hall and Sheather (1988) for a 90 % interval of a median, converted to a kernel's standard
deviation. It gives intervals the correct coverage, whereas the usual fifth root minimizes the density's error. Degrees
of freedom replace the number of runs, because runs that the fit passes through carry no information.
"""


def psi_and_stiffness(penalty: Penalty, residual: Any, weight: Any, free: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``FitDerivatives.psi`` and ``stiffness``.

    The stiffness is the derivative of psi around every run's residual, smoothed by a normal kernel as in Powell
    (1991) for quantiles. The scale of residuals excludes runs that the fit passes through: if these are half of the
    runs, the interquartile range is near 0, and errors would be too small. Counting the runs within delta is too noisy
    for tens of runs, and biased upwards.
    """
    kept = weight > 0
    runs = int(kept.sum())
    scale = median_scale(np.abs(residual[kept]), free)
    # If runs follow the law exactly, the kernel has almost no width and the stiffness is the plain derivative.
    width = max(WIDTH * scale * left_by(runs, free) ** (-1 / 3), 1e-9 * float(np.abs(residual).max()), 1e-12)
    psi, slopes = np.empty(len(residual)), np.empty(len(residual))
    for first in range(0, len(residual), SMOOTHED):
        rows = slice(first, first + SMOOTHED)
        smoothed = residual[rows, None] + width * NODES
        with float64():
            each = np.asarray(_slopes_of(penalty, np.hstack([residual[rows, None], smoothed])))
        psi[rows] = each[:, 0]
        # Integrate by parts, because no node may fall into the interval of width delta on which psi has a slope.
        slopes[rows] = (each[:, 1:] - each[:, :1]) @ NODES / (width * np.sum(NODES**2))
    # Residuals so far beyond delta that the kernel's tails do not reach delta get a lower bound.
    return psi, np.maximum(slopes, 1e-6 * max(float(slopes[kept].max()), 1e-6))


@functools.partial(jax.jit, static_argnums=0)
def _slopes_of(penalty: Penalty, residuals: jax.Array) -> Any:
    return jax.vmap(jax.vmap(jax.grad(penalty.of_residual)))(residuals)


@functools.partial(jax.jit, static_argnums=0)
def _second_derivatives(
    objective: FitObjective, point: jax.Array, data: Mapping[str, Any], weights: jax.Array
) -> tuple[Any, Any, Any]:
    """Return ``FitDerivatives.hessian``, ``scores`` and ``bends``."""

    def penalties(at: jax.Array, loss: jax.Array) -> Any:
        return objective.penalties(at, {**data, "loss": loss})

    ones = jnp.ones_like(data["loss"])
    # A run's penalty depends only on its own loss, so one directional derivative gives the derivatives of all runs.
    bends = jax.jvp(lambda loss: jax.jacfwd(penalties)(point, loss), (data["loss"],), (ones,))[1]
    hessian = jax.hessian(lambda at: jnp.sum(weights * penalties(at, data["loss"])))(point)
    return hessian, jax.jacfwd(penalties)(point, data["loss"]), bends


@functools.partial(jax.jit, static_argnums=(0, 1))
def _slopes(objective: FitObjective, functional: Functional, point: jax.Array, data: Mapping[str, Any]) -> Any:
    return jax.jacrev(lambda at: ravel_pytree(functional(objective.law_at(at, data)))[0])(point)


@dataclass(frozen=True, kw_only=True)
class Influence:
    """The influence of each run on a number."""

    value: float
    per_nat: Float[np.ndarray, " runs"]
    """Derivative of the number with respect to each run's loss (per nat); 0 for runs beyond Huber's delta."""
    if_removed: Float[np.ndarray, " runs"]
    """First-order change of the number if the run is removed."""

    def most(self, count: int = 3) -> list[int]:
        """Return the indices of the runs whose removal changes the number most."""
        return [int(i) for i in np.argsort(-np.abs(self.if_removed))[:count]]


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """The runs with the most influence on a number, and the number refitted without these runs."""

    value: float
    runs: tuple[int, ...]
    """Indices of the runs, the most influential first."""
    predicted: tuple[float, ...]
    """First-order prediction of the number without each of these runs."""
    refitted: tuple[float, ...]
    """The number from a refit without each of these runs."""
    without_all: float
    """The number from a refit without all of these runs."""


def deciding(result: FitResult, runs: Runs, functional: Functional, count: int = 3) -> Deciding:
    """Find the ``count`` runs whose removal changes a number most (to first order), and refit without each and without
    all.

    Raises:
      UserError: the functional has more than one number, the runs do not determine it, or too few runs would remain.
    """
    influences = influence(result, runs, functional)
    if len(influences) != 1 or not np.isfinite(influences[0].value):
        raise UserError(not_one_number("Influence", np.array([one.value for one in influences])))
    (one,) = influences
    if why := result.unknown(functional, 1)[0]:
        raise UserError(f"Influence needs a number that the runs determine, but {why}; choose another number.")
    most = one.most(min(count, int((runs.weight > 0).sum())))

    def without(left_out: Sequence[int]) -> float:
        kept = ~np.isin(np.arange(len(runs)), left_out)
        start = WarmStart((result.law,))
        refit = fit_law(
            type(result.law),
            runs.only(kept),
            penalty=result.penalty,
            starts=start,
            fixed=result.fixed,
            output=result.output,
        )
        with float64():
            return float(functional(refit.law))

    return Deciding(
        value=one.value,
        runs=tuple(most),
        predicted=tuple(float(one.value + one.if_removed[i]) for i in most),
        refitted=tuple(without([i]) for i in most),
        without_all=without(most),
    )


def not_one_number(method: str, numbers: np.ndarray) -> str:
    """Return the message for an estimand that has several numbers or a NaN or infinite value."""
    if numbers.size != 1:
        return (
            f"{method} needs a functional that returns one number; got {numbers.size:,} numbers. Compute one at a time."
        )
    return f"{method} needs a finite number, but this number is NaN or infinite in this fit; choose another number."


def influence(result: FitResult, runs: Runs, functional: Functional) -> list[Influence]:
    """Return the influence of every run on every number of a functional, in the order of its leaves.

    The optimum in search coordinates is u. It minimizes the objective F, the sum of w_i · F_i over the runs, where run
    i has the weight w_i, the loss L_i and the penalty F_i. At the optimum ∂F/∂u = 0 for all losses and weights. With
    the Hessian H = ∂²F/∂u², the implicit function theorem gives du/dL_i = -H⁻¹ · ∂²F/∂u∂L_i and du/dw_i = -H⁻¹ ·
    ∂F_i/∂u.
    """
    at = derivatives(result, runs)
    values = at.evaluate(functional)
    slopes = at.slopes(functional)
    per_nat = -slopes @ at.solve((at.weight[:, None] * at.bends).T)
    if_removed = slopes @ at.solve((at.weight[:, None] * at.scores).T)
    return [
        Influence(value=float(v), per_nat=n, if_removed=r) for v, n, r in zip(values, per_nat, if_removed, strict=True)
    ]
