"""Predict the loss after annealing the learning rate, from the loss curve of the constant-rate trunk.

Branches leave a trunk at several steps and decay their learning rates. A law of loss curves is fitted to the trunk and
its branches. The law gives the loss difference between a branch's end and the branch point; the trunk's measured losses
give the level at the branch point. To measure the prediction errors, each branch is left out once and predicted from a
fit to the other branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float

from moejax.curves.loss_curves import fit_curves, losses_at
from moejax.curves.read_curves import Curves, LossCurve, runs_of
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.search.fit_law import EVERY_START, fit_law
from moejax.fit.search.starts import WarmStart
from moejax.float64 import float64
from moejax.laws.law import Law
from moejax.result import column

LEAST_BRANCHES = 3
"""Minimum number of branches: one is left out, and two others are needed to interpolate its loss."""
LEVEL = 0.9
"""Coverage of the prediction intervals."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A training run that branches off a trunk and then decays its learning rate."""

    start: int
    """Number of trunk updates before the branch."""
    curve: LossCurve
    """Schedule from the trunk's first update, and losses measured after branching, up to the end of the branch. An
    untrained branch has no losses."""

    @property
    def end(self) -> int:
        """Total number of updates."""
        return len(self.curve.rates)


@dataclass(frozen=True, kw_only=True)
class AnnealedLoss:
    """The predicted final loss of one branch, in nats per token."""

    loss: float
    low: float
    high: float
    standard_error: float
    """Standard error, estimated from the left-out branches."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A trained branch predicted by a fit to the trunk and the other branches; losses in nats per token."""

    name: str
    end: int
    """Total number of updates."""
    measured: float
    predicted: AnnealedLoss
    """Prediction; its interval is computed from the errors of the other branches."""
    interpolated: float
    """Baseline without curves: log-log interpolation between the final losses of the nearest other branches."""

    @property
    def inside(self) -> bool:
        """True if the measured loss is inside the prediction interval."""
        return self.predicted.low <= self.measured <= self.predicted.high


@dataclass(frozen=True, kw_only=True)
class AnnealedErrors:
    """Errors of predictions of left-out branches, in nats per token."""

    branches: int = column("branches")
    mean_error: float = column("mean error", ".4f")
    largest_error: float = column("largest", ".4f")
    inside: int = column(f"in {LEVEL:.0%} intervals")
    """Number of measured losses inside their prediction intervals."""
    interpolated_mean_error: float = column("interpolated", ".4f")


@dataclass(frozen=True, kw_only=True)
class AnnealedLosses:
    """A trunk, the law fitted to it and its branches, and predictions of left-out branches."""

    trunk: LossCurve
    fit: FitResult
    left_out: tuple[LeftOut, ...]

    @property
    def errors(self) -> Float[np.ndarray, " branches"]:
        """Logarithm of the ratio of predicted to measured loss, for each left-out branch."""
        return np.array([math.log(one.predicted.loss / one.measured) for one in self.left_out])

    @property
    def summary(self) -> AnnealedErrors:
        """Errors of the predictions of left-out branches."""
        measured, predicted, interpolated = np.array(
            [(one.measured, one.predicted.loss, one.interpolated) for one in self.left_out]
        ).T
        off = np.abs(predicted - measured)
        return AnnealedErrors(
            branches=len(off),
            mean_error=float(off.mean()),
            largest_error=float(off.max()),
            inside=sum(one.inside for one in self.left_out),
            interpolated_mean_error=float(np.abs(interpolated - measured).mean()),
        )

    def predict(self, branch: Branch) -> AnnealedLoss:
        """Predict the final loss of an untrained branch, with a prediction interval.

        Raises:
          UserError: the branch starts after the trunk's end.
        """
        if branch.start > len(self.trunk.rates):
            raise UserError(
                f"{branch.curve.name} leaves the trunk after {branch.start:,} steps, but the trunk has only "
                f"{len(self.trunk.rates):,}; train a longer trunk."
            )
        return _ranged(branch_loss(self.fit.law, self.trunk, branch), self.errors)


def anneal(trunk: LossCurve, branches: Sequence[Branch], law: Any = "momentum", *, seed: int = 0) -> AnnealedLosses:
    """Fit a law of loss curves to a trunk and its branches, and predict each branch from the others.

    Args:
      law: name or class of the law.

    Raises:
      UserError: there are too few branches, the learning rate of a branch never falls, a loss is invalid, or a fit does
        not converge.
    """
    if len(branches) < LEAST_BRANCHES:
        raise UserError(
            f"{trunk.name} has {len(branches)} branch{'es' * (len(branches) != 1)}; give at least "
            f"{LEAST_BRANCHES}, since each branch is predicted from the others."
        )
    if flat := [branch.curve.name for branch in branches if not branch.curve.falls]:
        raise UserError(
            f"The learning rate of {flat[0]} never falls, so this branch does not show the effect of annealing; leave "
            f"it out."
        )
    curves = Curves(curves=(trunk, *(branch.curve for branch in branches)))
    for curve in curves.curves:
        if (wrong := ~(np.isfinite(curve.loss) & (curve.loss > 0))).any():
            raise UserError(
                f"The loss of {curve.name} at step {curve.steps[wrong][0]:,} is {curve.loss[wrong][0]:.4g}; loss-curve "
                f"laws need finite losses above 0. Leave this measurement or the curve out."
            )
    fit = _at_optimum(fit_curves(curves, law, intervals=False, seed=seed), "all branches")
    runs = runs_of(curves)
    named, predicted = np.array(runs.models), []
    for branch in branches:
        # Weights of 0 keep the shapes, so all fits share one compiled program.
        kept = runs.only(named != branch.curve.name)
        again = fit_law(type(fit.law), kept, starts=WarmStart((fit.law,)), search=EVERY_START, seed=seed)
        refit = _at_optimum(again, f"all branches but {branch.curve.name}")
        predicted.append(branch_loss(refit.law, trunk, branch))
    measured = np.array([branch.curve.loss[-1] for branch in branches])
    errors = np.log(np.array(predicted) / measured)
    ends = np.log([branch.end for branch in branches])
    others = ~np.eye(len(branches), dtype=bool)
    left_out = tuple(
        LeftOut(
            name=branch.curve.name,
            end=branch.end,
            measured=float(measured[i]),
            predicted=_ranged(predicted[i], errors[others[i]]),
            interpolated=math.exp(_interpolated(ends, np.log(measured), others[i], ends[i])),
        )
        for i, branch in enumerate(branches)
    )
    return AnnealedLosses(trunk=trunk, fit=fit, left_out=left_out)


def branch_loss(law: Law, trunk: LossCurve, branch: Branch) -> float:
    """Return the law's loss at a branch's end, shifted by the trunk's measured offset from the law at the branch point.

    The trunk's offset from the law changes more slowly than the loss of a branch, so a branch keeps the offset at its
    branch point. The offset is averaged over steps on both sides of the branch point, on each side as many as the
    branch has.
    """
    near = np.abs(trunk.steps - branch.start)
    near = near <= max(branch.end - branch.start, int(near.min()))
    with float64():
        of_law = np.asarray(losses_at(law, trunk.rates, trunk.steps[near]), np.float64)
        end = float(np.asarray(losses_at(law, branch.curve.rates, np.array([branch.end])))[0])
    return end * float(np.exp(np.mean(np.log(trunk.loss[near] / of_law))))


def _at_optimum(fit: FitResult, of: str) -> FitResult:
    if not fit.converged:
        raise UserError(
            f"The fit of {type(fit.law).__name__} to {of} did not converge (gradient norm {fit.gradient_norm:.2g}); "
            f"measure the validation loss more often, or choose another loss-curve law."
        )
    return fit


def _ranged(loss: float, errors: Float[np.ndarray, " branches"]) -> AnnealedLoss:
    """Return a prediction whose interval is computed from ``errors``, the log errors of left-out branches."""
    deviation = float(np.sqrt(np.mean(errors**2)))
    reach = float(scipy.special.stdtrit(len(errors), (1 + LEVEL) / 2)) * deviation
    return AnnealedLoss(
        loss=loss, low=loss * math.exp(-reach), high=loss * math.exp(reach), standard_error=loss * deviation
    )


def _interpolated(x: np.ndarray, y: np.ndarray, kept: Bool[np.ndarray, " points"], at: float) -> float:
    """Interpolate linearly between the kept points on both sides of ``at`` (x ascending). Outside the kept points,
    extrapolate from the nearest two."""
    x, y = x[kept], y[kept]
    right = int(np.clip(np.searchsorted(x, at), 1, len(x) - 1))
    return float(y[right - 1] + (y[right] - y[right - 1]) * (at - x[right - 1]) / (x[right] - x[right - 1]))
