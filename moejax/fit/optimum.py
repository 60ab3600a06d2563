"""A fit's optimum with everything that follows from it by differentiation: slopes, curvature, implicit derivatives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from moejax.fit.fit_law import form_of
from moejax.fit.fit_result import FitResult
from moejax.fit.problem import Form, data_of, law_at
from moejax.fit.runs import Runs

Decision = Callable[[Any], Any]
"""A number, or a pytree of numbers, taken from a law: a coefficient, an optimal size, a loss at a target."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The point at which a fit ended, in the coordinates that were searched, and its derivatives there."""

    form: Form
    data: Any
    weight: Float[np.ndarray, " runs"]
    point: Float[np.ndarray, " free"]
    hessian: Float[np.ndarray, "free free"]
    """Of the weighted sum of penalties."""
    scores: Float[np.ndarray, "runs free"]
    """Slope of every run's penalty, before weights."""
    bends: Float[np.ndarray, "runs free"]
    """What a nat more in a run's loss adds to the slope of its penalty."""
    dispersion: float
    """Sum of psi² over sum of psi' of the residuals, per degree of freedom; for squared residuals, 2·sigma²."""

    def decide(self, decision: Decision) -> tuple[np.ndarray, Any]:
        """What a decision is at the optimum, as a flat array, and how to put such an array into its pytree."""
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            flat, unravel = ravel_pytree(decision(law_at(self.form, self.point, self.data)))
            return np.asarray(flat), unravel

    def slopes(self, decision: Decision) -> Float[np.ndarray, "answers free"]:
        """Derivative of a decision in the coordinates."""
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return np.asarray(_slopes(self.form, decision, self.point, self.data))

    def solve(self, right: Float[np.ndarray, "free columns"]) -> Float[np.ndarray, "free columns"]:
        """H⁻¹ · right; directions without curvature are left out, as the runs say nothing about them."""
        return np.linalg.lstsq(self.hessian, right, rcond=1e-13)[0]


def optimum(result: FitResult, runs: Runs) -> Optimum:
    """The optimum of a fit, with its derivatives.

    Raises:
      ValueError: the runs are not those of the fit.
    """
    if runs.data_hash != result.data_hash:
        raise ValueError(f"The fit was made to data {result.data_hash} and these runs are {runs.data_hash}; fit again.")
    form = form_of(result)
    data = data_of(form, runs, result.fixed)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        point = np.asarray(form.point_of(result.law, data))
        hessian, scores, bends, psi, stiffness = (np.asarray(x) for x in _derivatives(form, point, data, runs.weight))
    freedom = max(int((runs.weight > 0).sum()) - len(point), 1) / max(int((runs.weight > 0).sum()), 1)
    dispersion = float(runs.weight @ psi**2 / max(runs.weight @ stiffness, 1e-300) / freedom)
    return Optimum(
        form=form,
        data=data,
        weight=runs.weight,
        point=point,
        hessian=hessian,
        scores=scores,
        bends=bends,
        dispersion=dispersion,
    )


@functools.partial(jax.jit, static_argnums=0)
def _derivatives(form: Form, point: Any, data: Any, weights: Any) -> tuple[Any, ...]:
    def penalties(at: Any, loss: Any) -> Any:
        return form.penalties(at, {**data, "loss": loss})

    def penalty_of_shift(shift: Any) -> Any:
        """Penalty of every run if its residual, in log loss, were larger by a shift."""
        return form.penalty(form.predicted(point, data) * jnp.exp(shift), data["loss"])

    none = jnp.zeros_like(data["loss"])
    ones = jnp.ones_like(none)
    psi_of = lambda shift: jax.jvp(penalty_of_shift, (shift,), (ones,))[1]  # noqa: E731
    psi, stiffness = jax.jvp(psi_of, (none,), (ones,))
    # A run's penalty depends on its own loss alone, so one directional derivative holds all of them.
    bends = jax.jvp(lambda loss: jax.jacfwd(penalties)(point, loss), (data["loss"],), (ones,))[1]
    hessian = jax.hessian(lambda at: jnp.sum(weights * penalties(at, data["loss"])))(point)
    return hessian, jax.jacfwd(penalties)(point, data["loss"]), bends, psi, stiffness


@functools.partial(jax.jit, static_argnums=(0, 1))
def _slopes(form: Form, decision: Decision, point: Any, data: Any) -> Any:
    return jax.jacrev(lambda at: ravel_pytree(decision(form.law_at(at, data)))[0])(point)
