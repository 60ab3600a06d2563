"""Efficiency leverage of trained mixtures: a loss-compute curve per family, and how far noise moves what they say."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Bool, Float, Int

from moejax.errors import UserError
from moejax.fit.derivatives import FitDerivatives, derivatives
from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.objective import FitObjective, Squared
from moejax.fit.runs import Runs, budgets
from moejax.fit.starts import Sobol
from moejax.float64 import float64
from moejax.laws.leverage import leverage_between
from moejax.laws.loss_compute import LossCompute

LEAST_BUDGETS = 4
"""A loss-compute curve has three coefficients; a family trained at fewer budgets is left out."""
CURVE_STARTS = 32
"""Starts of a loss-compute curve."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Runs of one activation ratio and granularity, and the loss that their best reach with compute."""

    activation_ratio: float
    granularity: float
    budgets: int
    curve: FitResult
    runs: Runs
    """All runs, those that the curve goes through with weight."""


@dataclass(frozen=True, kw_only=True)
class Leverages:
    """Leverage of every family at every budget it was trained at, NaN where it is undefined."""

    dense: Family
    families: tuple[Family, ...]
    left_out: tuple[str, ...]
    rows: Int[np.ndarray, " points"]
    """The run of lowest loss of that family and budget."""
    value: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"]
    high: Float[np.ndarray, " points"]
    """Ends of the interval: both curves' noise, as the residuals of all curves tell it, by the delta method."""


def leverages(
    runs: Runs,
    ratio: Float[np.ndarray, " runs"],
    granularity: Float[np.ndarray, " runs"],
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    *,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> Leverages:
    """Algorithm 1 of Tian et al. (2025) on every family's curve and the dense one (an activation ratio of 1).

    Raises:
      UserError: the dense runs, or every family's, were trained at too few budgets.
    """
    report = progress or (lambda *_: None)
    best = _best(runs, ratio, granularity, budget)
    dense = best & (ratio == 1)
    if dense.sum() < LEAST_BUDGETS:
        raise UserError(
            f"Dense runs (num_experts 0, or every expert active) were trained at {dense.sum()} budgets; leverage is "
            f"measured against their loss-compute curve, which needs {LEAST_BUDGETS}."
        )
    kept = runs.only(dense)
    curve, against = _curve_of(kept, seed)
    pairs = sorted(set(zip(ratio[ratio != 1], granularity[ratio != 1], strict=True)))
    families, left_out, taken, curves = [], [], [], []
    for number, (a, g) in enumerate(pairs):
        report("loss-compute curves", number, len(pairs))
        own = best & (ratio == a) & (granularity == g)
        if own.sum() < LEAST_BUDGETS:
            left_out.append(f"A = {a:.4g}, G = {g:.4g} was trained at {own.sum()} budgets; {LEAST_BUDGETS} are needed.")
            continue
        fitted, at = _curve_of(runs.only(own), seed)
        families.append(_family(a, g, fitted, runs.only(own)))
        taken.append(np.flatnonzero(own))
        curves.append(at)
    if not families:
        raise UserError(f"No family of mixtures was trained at {LEAST_BUDGETS} budgets: {' '.join(left_out)}")
    values, reaches = zip(
        *(
            _between(one, against, flops[budget[rows]], [*curves, against], level)
            for one, rows in zip(curves, taken, strict=True)
        ),
        strict=True,
    )
    value, reach = np.concatenate(values), np.concatenate(reaches)
    return Leverages(
        dense=_family(1.0, float("nan"), curve, kept),
        families=tuple(families),
        left_out=tuple(left_out),
        rows=np.concatenate(taken),
        value=value,
        low=value * np.exp(-reach),
        high=value * np.exp(reach),
    )


def _family(activation_ratio: float, granularity: float, curve: FitResult, runs: Runs) -> Family:
    number = int((runs.weight > 0).sum())
    return Family(activation_ratio=activation_ratio, granularity=granularity, budgets=number, curve=curve, runs=runs)


@dataclass(frozen=True, kw_only=True)
class Between:
    """Leverage of one set of runs over another at some FLOPs, NaN where it is undefined."""

    flops: Float[np.ndarray, " budgets"]
    value: Float[np.ndarray, " budgets"]
    low: Float[np.ndarray, " budgets"]
    high: Float[np.ndarray, " budgets"]
    """Ends of the interval, as those of ``Leverages``."""
    curve: FitResult
    against: FitResult


def leverage_of(
    runs: Runs, against: Runs, flops: Float[np.ndarray, " budgets"] | None = None, *, level: float = 0.9, seed: int = 0
) -> Between:
    """FLOPs of the second family per FLOP of the first at equal loss, each by the best of its runs at every budget.

    Args:
      flops: where it is asked; the first family's budgets, if not given.

    Raises:
      UserError: a family was trained at too few budgets.
    """
    curves, own = [], []
    for name, family in (("first", runs), ("second", against)):
        number, budget = budgets(family.design.flops)
        none = np.zeros(len(family))
        best = _best(family, none, none, number)
        if best.sum() < LEAST_BUDGETS:
            raise UserError(
                f"The {name} family was trained at {best.sum()} budgets; its loss-compute curve needs {LEAST_BUDGETS}."
            )
        curves.append(_curve_of(family.only(best), seed))
        own.append(budget)
    at = own[0] if flops is None else np.asarray(flops, float)
    (curve, one), (dense, other) = curves
    value, reach = _between(one, other, at, [one, other], level)
    return Between(
        flops=at, value=value, low=value * np.exp(-reach), high=value * np.exp(reach), curve=curve, against=dense
    )


def _best(runs: Runs, ratio: np.ndarray, granularity: np.ndarray, budget: np.ndarray) -> Bool[np.ndarray, " runs"]:
    """The run of lowest loss of every family at every budget; dense runs are one family."""
    best: dict[tuple[float, float, int], int] = {}
    for i in np.flatnonzero(runs.weight > 0):
        key = (float(ratio[i]), 0.0 if ratio[i] == 1 else float(granularity[i]), int(budget[i]))
        if key not in best or runs.loss[i] < runs.loss[best[key]]:
            best[key] = int(i)
    return np.isin(np.arange(len(runs)), list(best.values()))


def _curve_of(runs: Runs, seed: int) -> tuple[FitResult, FitDerivatives]:
    fitted = fit_law(LossCompute, runs, starts=Sobol(CURVE_STARTS, seed), penalty=Squared())
    return fitted, derivatives(fitted, runs)


def _between(
    mixture: FitDerivatives, dense: FitDerivatives, flops: np.ndarray, every: Sequence[FitDerivatives], level: float
) -> tuple[np.ndarray, np.ndarray]:
    """Leverage at these FLOPs, and half the width of its logarithm's interval; NaN where it is undefined."""
    curves = (mixture, dense)
    with float64():
        points, data = tuple(one.point for one in curves), tuple(one.data for one in curves)
        logs = np.asarray(_log_leverage(mixture.objective, points, data, flops))
        slopes = [np.asarray(one) for one in _slopes(mixture.objective, points, data, flops)]
    degrees_of_freedom = [max(int((one.weight > 0).sum()) - len(one.point), 0) for one in every]
    # A curve of four or five budgets tells its own noise badly; the noise of training is that of all curves.
    noise = np.dot(degrees_of_freedom, [one.dispersion for one in every]) / sum(degrees_of_freedom)
    variance = np.zeros(len(flops))
    for one, slope in zip(curves, slopes, strict=True):
        variance += np.einsum("af,fg,ag->a", slope, one.solve(np.eye(len(one.point))) * noise, slope)
    student = float(scipy.special.stdtrit(sum(degrees_of_freedom), (1 + level) / 2))
    return np.exp(logs), np.where(np.isfinite(logs), student * np.sqrt(np.maximum(variance, 0.0)), np.nan)


@functools.partial(jax.jit, static_argnums=0)
def _log_leverage(objective: FitObjective, points: Any, data: Any, flops: Any) -> Any:
    mixture, dense = (objective.law_at(point, one) for point, one in zip(points, data, strict=True))
    return jnp.log(leverage_between(mixture, dense, flops))


@functools.partial(jax.jit, static_argnums=0)
def _slopes(objective: FitObjective, points: Any, data: Any, flops: Any) -> Any:
    return jax.jacrev(lambda at: _log_leverage(objective, at, data, flops))(points)
