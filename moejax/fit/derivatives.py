"""A fit's optimum with everything that follows from it by differentiation: slopes, curvature, implicit derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from moejax.fit.fit_law import objective_of
from moejax.fit.fit_result import FitResult, check_runs_of
from moejax.fit.intervals import left_by
from moejax.fit.objective import FitObjective, Penalty, data_of, law_at, slopes_of_residuals
from moejax.fit.runs import Runs
from moejax.fit.undetermined import FLAT
from moejax.float64 import float64

Functional = Callable[[Any], Any]
"""A number, or a pytree of numbers, taken from a law: a coefficient, an optimal size, a loss at a target."""


@dataclass(frozen=True, kw_only=True)
class FitDerivatives:
    """The point at which a fit ended, in the coordinates that were searched, and its derivatives there."""

    objective: FitObjective
    data: Any
    weight: Float[np.ndarray, " runs"]
    point: Float[np.ndarray, " free"]
    jacobian: Float[np.ndarray, "runs free"]
    """Slope of every run's residual, in the penalty's unit, in the coordinates."""
    psi: Float[np.ndarray, " runs"]
    """Slope of every run's penalty in its residual."""
    stiffness: Float[np.ndarray, " runs"]
    """Expected slope of psi in every run's residual: 2 for squares; for Huber's, the odds that it is within delta."""

    @functools.cached_property
    def _second(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Standard errors need none of it, and it takes longer to compile than they do.
        with float64():
            hessian, scores, bends = _second_derivatives(self.objective, self.point, self.data, self.weight)
        return np.asarray(hessian), np.asarray(scores), np.asarray(bends)

    @property
    def hessian(self) -> Float[np.ndarray, "free free"]:
        """Hessian of the weighted sum of penalties."""
        return self._second[0]

    @property
    def scores(self) -> Float[np.ndarray, "runs free"]:
        """Slope of every run's penalty, before weights."""
        return self._second[1]

    @property
    def bends(self) -> Float[np.ndarray, "runs free"]:
        """What a nat more in a run's loss adds to the slope of its penalty."""
        return self._second[2]

    @property
    def curvature(self) -> Float[np.ndarray, "free free"]:
        """Expected Hessian: the Jacobian's outer product by the runs' stiffness.

        The Hessian itself counts, for Huber's penalty, the few runs that happen to lie within delta, and those are
        the ones that the fit passed through: errors by it are too small and too noisy. One stiffness for all runs
        would be wrong where some scatter more than others, as Chinchilla's points do.
        """
        return (self.jacobian.T * (self.weight * self.stiffness)) @ self.jacobian

    @property
    def dispersion(self) -> float:
        """Mean psi² over the mean stiffness, per degree of freedom; for squared residuals, 2·sigma²."""
        runs = int((self.weight > 0).sum())
        degrees_of_freedom = left_by(runs, len(self.point)) / max(runs, 1)
        square, stiffness = (float(np.average(part, weights=self.weight)) for part in (self.psi**2, self.stiffness))
        return square / stiffness / degrees_of_freedom

    def evaluate(self, functional: Functional) -> tuple[np.ndarray, Any]:
        """What a functional is at the optimum, as a flat array, and how to put such an array into its pytree."""
        with float64():
            numbers = functional(law_at(self.objective, self.point, self.data))
            return ravelled(numbers)

    def slopes(self, functional: Functional) -> Float[np.ndarray, "answers free"]:
        """Derivative of a functional in the coordinates."""
        with float64():
            return np.asarray(_slopes(self.objective, functional, self.point, self.data))

    def solve(self, right: Float[np.ndarray, "free columns"]) -> Float[np.ndarray, "free columns"]:
        """H⁻¹ · right; directions without curvature are left out, as the runs say nothing about them."""
        return np.linalg.lstsq(self.hessian, right, rcond=FLAT)[0]


def derivatives(result: FitResult, runs: Runs, *, past_zero: bool = False) -> FitDerivatives:
    """The optimum of a fit, with its derivatives.

    Args:
      past_zero: whether coefficients that have come to nearly 0 are taken as they are, not by their logarithms, in
        which no run moves. What is not 0 in truth may be fitted as 0; other coefficients then make up for it, and
        their errors are right only if this one may be off too.

    Raises:
      UserError: the runs are not those of the fit.
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
        found = slopes_of_residuals(objective, objective.penalty.residual, point, data)
        residual, jacobian = (np.asarray(x) for x in found)
        # A run of weight 0 may have a prediction without a logarithm, and 0 times NaN is none either.
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
"""Equally likely values of a standard normal number."""


SMOOTHED = 2**14
"""Runs whose residuals are smoothed at once: a matrix of all runs by all nodes would be most of what a fit holds."""
WIDTH = 1.25
"""Standard deviation of the kernel, in scales of the residuals by the cube root of the degrees of freedom.

Hall and Sheather's (1988) bandwidth of a median's 90 % interval, as the standard deviation of a kernel: it makes the
share of intervals that hold the truth right, where the usual fifth root makes the error of the density least. Runs that
the fit passes through count as none, hence the degrees of freedom.
"""


def psi_and_stiffness(penalty: Penalty, residual: Any, weight: Any, free: int) -> tuple[np.ndarray, np.ndarray]:
    """``FitDerivatives.psi`` and ``stiffness``: the latter is the slope of psi around every run's residual, smoothed by
    a normal kernel, as Powell (1991) does for quantiles.

    Residuals are widened for the degrees of freedom that the fit took. Counting the runs within delta instead is too
    noisy for a table of tens of runs, and too many: as many as there are coefficients lie there by construction.
    """
    kept = weight > 0
    runs = int(kept.sum())
    wide = residual * np.sqrt(runs / left_by(runs, free))
    low, high = np.quantile(wide[kept], [0.25, 0.75])
    scale = min(float(np.std(wide[kept])), float(high - low) / 1.349)
    # Of runs that follow the law exactly it is the slope itself.
    width = max(WIDTH * scale * left_by(runs, free) ** (-1 / 3), 1e-9 * float(np.abs(residual).max()), 1e-12)
    psi, slopes = np.empty(len(residual)), np.empty(len(residual))
    for first in range(0, len(residual), SMOOTHED):
        rows = slice(first, first + SMOOTHED)
        smoothed = wide[rows, None] + width * NODES
        with float64():
            each = np.asarray(_slopes_of(penalty, np.hstack([residual[rows, None], smoothed])))
        psi[rows] = each[:, 0]
        # By parts: nodes may all miss the interval, of the width of delta, in which psi has a slope.
        slopes[rows] = (each[:, 1:] - each[:, :1]) @ NODES / (width * np.sum(NODES**2))
    # Residuals so far beyond delta that not even the tails reach it leave a bound, not a number.
    return psi, np.maximum(slopes, 1e-6 * max(float(slopes[kept].max()), 1e-6))


def ravelled(numbers: Any) -> tuple[Float[np.ndarray, " answers"], Callable[[Any], Any]]:
    """The numbers of a pytree as a flat array, and how to put such an array into the pytree; nothing is compiled."""
    leaves, tree = jax.tree.flatten(numbers)
    arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
    ends = np.cumsum([array.size for array in arrays])

    def unravel(flat: Any) -> Any:
        parts = np.split(np.asarray(flat), ends[:-1])
        return tree.unflatten([part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)])

    return np.concatenate([array.ravel() for array in arrays]), unravel


@functools.partial(jax.jit, static_argnums=0)
def _slopes_of(penalty: Penalty, residuals: Any) -> Any:
    """Derivative of a penalty at a matrix of residuals."""
    return jax.vmap(jax.vmap(jax.grad(penalty.of_residual)))(residuals)


@functools.partial(jax.jit, static_argnums=0)
def _second_derivatives(objective: FitObjective, point: Any, data: Any, weights: Any) -> tuple[Any, Any, Any]:
    """``FitDerivatives.hessian``, ``scores`` and ``bends``."""

    def penalties(at: Any, loss: Any) -> Any:
        return objective.penalties(at, {**data, "loss": loss})

    ones = jnp.ones_like(data["loss"])
    # A run's penalty depends on its own loss alone, so one directional derivative holds all of them.
    bends = jax.jvp(lambda loss: jax.jacfwd(penalties)(point, loss), (data["loss"],), (ones,))[1]
    hessian = jax.hessian(lambda at: jnp.sum(weights * penalties(at, data["loss"])))(point)
    return hessian, jax.jacfwd(penalties)(point, data["loss"]), bends


@functools.partial(jax.jit, static_argnums=(0, 1))
def _slopes(objective: FitObjective, functional: Functional, point: Any, data: Any) -> Any:
    return jax.jacrev(lambda at: ravel_pytree(functional(objective.law_at(at, data)))[0])(point)
