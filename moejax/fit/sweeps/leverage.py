"""Measure the efficiency leverage of one group of trained models over another, with intervals, from their
loss-compute curves."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import fit_law
from moejax.fit.search.objective import FitObjective, Squared
from moejax.fit.search.starts import Sobol
from moejax.fit.sweeps.budget_losses import BudgetLosses, budget_losses
from moejax.fit.sweeps.settings import precision
from moejax.fit.uncertainty.derivatives import FitDerivatives, derivatives
from moejax.float64 import float64
from moejax.laws.dense.loss_compute import LossCompute
from moejax.laws.mixtures.leverage import leverage_between
from moejax.laws.predict import factor
from moejax.wording import argument, counted

CURVE_STARTS = 32
"""Number of initial guesses of a loss-compute fit."""


@dataclass(frozen=True, kw_only=True)
class Between:
    """Leverage of one group of runs over another at given FLOPs; NaN if undefined."""

    flops: Float[np.ndarray, " budgets"]
    value: Float[np.ndarray, " budgets"]
    low: Float[np.ndarray, " budgets"]
    high: Float[np.ndarray, " budgets"]
    """Ends of the interval, from the noise of both curves and of the quadratics; NaN if the leverage is undefined or
    ``unknown`` has a reason."""
    unknown: tuple[str, ...]
    """Reason why the error of each leverage is unknown; empty if it is known."""
    curve: FitResult
    against: FitResult
    budgets: tuple[BudgetLosses, BudgetLosses]
    """Losses that each curve is fitted to."""

    without_asymptote: tuple[bool, bool]
    """For each group, True if it has too few budgets to fit an irreducible loss, which is then fixed at 0."""

    @property
    def read_at(self) -> tuple[Float[np.ndarray, " budgets"], Float[np.ndarray, " budgets"]]:
        """FLOPs at which each curve is evaluated: ``flops``, and the second group's FLOPs with equal loss."""
        return self.flops, self.flops * self.value

    @property
    def beyond(self) -> tuple[Float[np.ndarray, " budgets"], Float[np.ndarray, " budgets"]]:
        """Extrapolation factors of ``read_at`` per group: > 1 above its largest FLOPs, < 1 below its smallest."""
        first, second = (
            np.array([factor(at, spent.min(), spent.max()) if np.isfinite(at) else np.nan for at in read])
            for read, spent in zip(self.read_at, (one.runs.design.flops for one in self.budgets), strict=True)
        )
        return first, second


def leverage_of(
    runs: Runs,
    against: Runs,
    flops: Float[np.ndarray, " budgets"] | None = None,
    *,
    fixed: Mapping[str, float] | None = None,
    level: float = 0.9,
    seed: int = 0,
) -> Between:
    """Return the leverage: the second group's FLOPs divided by the first group's FLOPs at equal loss.

    A budget's loss is the minimum of a quadratic in log size if its runs determine a minimum, otherwise its lowest
    measured loss (``budget_losses``).

    Args:
      flops: FLOPs of the first group at which to evaluate; by default, the budgets of the first group.
      fixed: fixed coefficients of both curves, such as ``irreducible`` and ``exponent``. A group with no more budgets
        than free coefficients has an irreducible loss of 0 unless ``irreducible`` is fixed.

    Raises:
      UserError: a group was trained at fewer budgets than its curve has free coefficients, or a fixed coefficient is
        unknown or has an invalid value.
    """
    losses = (budget_losses(runs), budget_losses(against))
    held = [_held(name, len(one.runs), fixed or {}) for name, one in zip(("first", "second"), losses, strict=True)]
    for name, one in zip(("first", "second"), losses, strict=True):
        _check_falls(name, one.runs)
    weights = precision(np.sqrt(np.concatenate([one.own for one in losses])))
    parts = np.split(weights, [len(losses[0].runs)])
    kept = [replace(one.runs, weight=weight) for one, weight in zip(losses, parts, strict=True)]
    (curve, one), (dense, other) = (fit_curve(family, seed, given) for family, given in zip(kept, held, strict=True))
    at = losses[0].runs.design.flops if flops is None else np.asarray(flops, float)
    # The quadratics of a group share coefficients, so their noise is correlated.
    spare = sum(each.degrees_of_freedom for each in losses)
    noise = sum(each.residual for each in losses) / max(spare, 1)
    shared = [noise * each.shared * np.outer(own.loss, own.loss) for each, own in zip(losses, kept, strict=True)]
    value, reach = leverage_and_reach(one, other, at, [one, other], level, shared, spare)
    why = [
        curve.unknown(lambda law: jnp.log(leverage_between(law, dense.law, at)), len(at)),
        dense.unknown(lambda law: jnp.log(leverage_between(curve.law, law, at)), len(at)),
    ]
    exact = NO_SCATTER if not any(map(_spare, (one, other))) else ""
    unknown = tuple(first or second or exact for first, second in zip(*why, strict=True))
    reach = np.where([bool(reason) for reason in unknown], np.nan, reach)
    return Between(
        flops=at,
        value=value,
        low=value * np.exp(-reach),
        high=value * np.exp(reach),
        unknown=unknown,
        curve=curve,
        against=dense,
        budgets=losses,
        without_asymptote=(len(held[0]) > len(fixed or {}), len(held[1]) > len(fixed or {})),
    )


NO_SCATTER = "both curves pass through every budget's loss, so no budget is left to estimate the noise"
"""Reason why no leverage has an interval."""


def _held(name: str, budgets: int, fixed: Mapping[str, float]) -> dict[str, float]:
    """Return the fixed coefficients of a group's curve, keyed by name.

    Raises:
      UserError: the group was trained at too few budgets for the free coefficients.
    """
    held, count = dict(fixed), len(fields(LossCompute))
    if budgets <= count - len(held):
        held.setdefault("irreducible", 0.0)
    if budgets < (free := count - len(held)):
        raise UserError(
            f"The {name} group was trained at {counted(budgets, 'budget')}; its loss-compute curve needs {free}. "
            f"Train it at more budgets, or give the curve's exponent ({argument('fixed', {'exponent': '-0.1'})})."
        )
    return held


def _check_falls(name: str, runs: Runs) -> None:
    """Raise ``UserError`` if losses do not fall with FLOPs, since a loss-compute curve always falls."""
    flops, loss = runs.design.flops, runs.loss
    if len(flops) > 1 and np.polyfit(np.log(flops), np.log(loss), 1)[0] >= 0:
        least, most = np.argmin(flops), np.argmax(flops)
        raise UserError(
            f"The {name} group's loss does not fall with compute: it is {loss[least]:.4g} at {flops[least]:.3g} FLOPs "
            f"and {loss[most]:.4g} at {flops[most]:.3g} FLOPs, but leverage needs falling curves. Check the columns of "
            f"FLOPs and losses, and leave out diverged runs."
        )


def fit_curve(runs: Runs, seed: int, fixed: Mapping[str, float] | None = None) -> tuple[FitResult, FitDerivatives]:
    """Fit a loss-compute curve to one run per budget, and differentiate it at its optimum."""
    fitted = fit_law(LossCompute, runs, starts=Sobol(CURVE_STARTS, seed), penalty=Squared(), fixed=fixed)
    return fitted, derivatives(fitted, runs)


def _spare(one: FitDerivatives) -> int:
    return max(int((one.weight > 0).sum()) - len(one.point), 0)


def leverage_and_reach(
    mixture: FitDerivatives,
    dense: FitDerivatives,
    flops: np.ndarray,
    every: Sequence[FitDerivatives],
    level: float,
    shared: Sequence[np.ndarray] = (),
    spare: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the leverage at these FLOPs, and half the width of its logarithm's interval; NaN if undefined.

    Args:
      shared: for each curve, the covariance of its fitted losses, with ``spare`` degrees of freedom.
    """
    curves = (mixture, dense)
    with float64():
        points, data = tuple(one.point for one in curves), tuple(one.data for one in curves)
        objectives = tuple(one.objective for one in curves)
        logs = np.asarray(_log_leverage(objectives, points, data, flops))
        slopes = [np.asarray(one) for one in _slopes(objectives, points, data, flops)]
    degrees_of_freedom = [*map(_spare, every)]
    # Four or five budgets give a poor estimate of one curve's noise, so the noise is pooled over all curves.
    of_weight_1 = [one.dispersion * one.weight[one.weight > 0].mean() for one in every]
    noise = np.dot(degrees_of_freedom, of_weight_1) / max(sum(degrees_of_freedom), 1)
    variance, together = np.zeros(len(flops)), np.zeros(len(flops))
    for number, (one, slope) in enumerate(zip(curves, slopes, strict=True)):
        variance += np.einsum("af,fg,ag->a", slope, one.solve(np.eye(len(one.point))) * noise, slope)
        if shared:
            # Derivative of the log leverage in each loss, by the implicit derivative of the optimum.
            moved = -slope @ one.solve((one.weight[:, None] * one.bends).T)
            together += np.einsum("ar,rs,as->a", moved, shared[number], moved)
    variance, together = np.maximum(variance, 0.0), np.maximum(together, 0.0)
    # Welch-Satterthwaite degrees of freedom of a sum of two variances.
    parts = variance**2 / max(sum(degrees_of_freedom), 1) + together**2 / max(spare, 1)
    freedom = (variance + together) ** 2 / np.maximum(parts, 1e-300)
    student = scipy.special.stdtrit(np.maximum(freedom, 1.0), (1 + level) / 2)
    return np.exp(logs), np.where(np.isfinite(logs), student * np.sqrt(variance + together), np.nan)


Points = tuple[jax.Array, jax.Array]
Data = tuple[Mapping[str, Any], Mapping[str, Any]]


@functools.partial(jax.jit, static_argnums=0)
def _log_leverage(objectives: tuple[FitObjective, FitObjective], points: Points, data: Data, flops: jax.Array) -> Any:
    mixture, dense = (
        objective.law_at(point, one) for objective, point, one in zip(objectives, points, data, strict=True)
    )
    return jnp.log(leverage_between(mixture, dense, flops))


@functools.partial(jax.jit, static_argnums=0)
def _slopes(objectives: tuple[FitObjective, FitObjective], points: Points, data: Data, flops: jax.Array) -> Any:
    return jax.jacrev(lambda at: _log_leverage(objectives, at, data, flops))(points)
