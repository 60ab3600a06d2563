"""The loss that a training reaches where its learning rate is annealed, from the curve of its constant-rate trunk.

Branches leave a trunk at several steps, and their learning rates fall to their ends. A law of loss curves fitted to
trunk and branches says how much lower a branch ends than its trunk lies where it leaves; the trunk's own measurements
say where that is. How far such a prediction is off is measured: every branch is left out once, and predicted by a fit
to the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float

from moejax.errors import UserError
from moejax.fit.fit_law import EVERY_START, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.loss_curves import fit_curves, losses_at
from moejax.fit.read_curves import Curves, LossCurve, runs_of
from moejax.fit.starts import WarmStart
from moejax.float64 import float64

LEAST_BRANCHES = 3
"""One is left out, and between two others its loss could be interpolated."""
LEVEL = 0.9
"""Coverage of the ranges."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A training that leaves its trunk and lowers its learning rate to the end."""

    start: int
    """Updates of the trunk before it."""
    curve: LossCurve
    """Its schedule from the trunk's first update on, and losses that were measured after it left, the last at its
    end; none of a branch that was not trained."""

    @property
    def end(self) -> int:
        """Updates in all."""
        return len(self.curve.rates)


@dataclass(frozen=True, kw_only=True)
class AnnealedLoss:
    """What the end of one branch is predicted to lose, nats per token."""

    loss: float
    low: float
    high: float
    standard_error: float
    """By the branches that were left out."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A trained branch, predicted by a fit to the trunk and the other branches; losses in nats per token."""

    name: str
    end: int
    """Updates in all."""
    measured: float
    predicted: AnnealedLoss
    """Its range is by the errors of the others."""
    interpolated: float
    """Linear in logarithms of loss and updates between the ends of the nearest other branches: no curve is needed."""

    @property
    def inside(self) -> bool:
        """Whether the measured loss lies in the range."""
        return self.predicted.low <= self.measured <= self.predicted.high


@dataclass(frozen=True, kw_only=True)
class AnnealedLosses:
    """A trunk with its branches, the law of them, and how it predicts branches that were left out."""

    trunk: LossCurve
    fit: FitResult
    left_out: tuple[LeftOut, ...]

    @property
    def errors(self) -> Float[np.ndarray, " branches"]:
        """Logarithm of predicted over measured loss of each branch that was left out."""
        return np.array([math.log(one.predicted.loss / one.measured) for one in self.left_out])

    @property
    def summary(self) -> dict[str, int | float]:
        """How far off branches that were left out are predicted, nats per token, and how many lie in their ranges."""
        measured, predicted, interpolated = np.array(
            [(one.measured, one.predicted.loss, one.interpolated) for one in self.left_out]
        ).T
        off = np.abs(predicted - measured)
        return {
            "branches": len(off),
            "mean_error": float(off.mean()),
            "largest_error": float(off.max()),
            "inside": sum(one.inside for one in self.left_out),
            "interpolated_mean_error": float(np.abs(interpolated - measured).mean()),
        }

    def predict(self, branch: Branch) -> AnnealedLoss:
        """What a branch that was not trained would reach, with the range of its measured loss.

        Raises:
          UserError: it leaves the trunk after the trunk's end.
        """
        if branch.start > len(self.trunk.rates):
            raise UserError(
                f"{branch.curve.name} leaves the trunk after {branch.start:,} steps, and the trunk has "
                f"{len(self.trunk.rates):,}; train a longer one."
            )
        return _ranged(branch_loss(self.fit.law, self.trunk, branch), self.errors)


def anneal(trunk: LossCurve, branches: Sequence[Branch], law: Any = "momentum", *, seed: int = 0) -> AnnealedLosses:
    """Fit a law of loss curves to a trunk and its branches, and predict each branch from the others.

    Args:
      law: its name, or its class.

    Raises:
      UserError: there are too few branches, their rates do not fall, a loss is not finite, or a fit has no optimum.
    """
    if len(branches) < LEAST_BRANCHES:
        raise UserError(
            f"{trunk.name} has {len(branches)} branch{'es' * (len(branches) != 1)}; annealed losses are predicted from "
            f"{LEAST_BRANCHES} or more, so that each is predicted from others once."
        )
    if flat := [branch.curve.name for branch in branches if not branch.curve.falls]:
        raise UserError(f"The learning rate of {flat[0]} does not fall; it says nothing of what annealing does.")
    curves = Curves(curves=(trunk, *(branch.curve for branch in branches)))
    for curve in curves.curves:
        if (wrong := ~(np.isfinite(curve.loss) & (curve.loss > 0))).any():
            raise UserError(
                f"The loss of {curve.name} at step {curve.steps[wrong][0]:,} is {curve.loss[wrong][0]:.4g}; laws of "
                f"curves are of losses above 0."
            )
    fit = _at_optimum(fit_curves(curves, law, intervals=False, seed=seed), "all branches")
    runs = runs_of(curves)
    named, predicted = np.array(runs.models), []
    for branch in branches:
        # With weights of 0 every fit is one compiled program.
        kept = runs.only(named != branch.curve.name)
        again = fit_law(type(fit.law), kept, starts=WarmStart((fit.law,)), search=EVERY_START, seed=seed)
        found = _at_optimum(again, f"all branches but {branch.curve.name}")
        predicted.append(branch_loss(found.law, trunk, branch))
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


def branch_loss(law: Any, trunk: LossCurve, branch: Branch) -> float:
    """The loss at a branch's end: the law's, by as much higher or lower as the trunk is measured where it leaves.

    A trunk's losses wander about the law for longer than it takes to anneal, and a branch begins where they are. They
    are measured over as many steps to either side as the branch takes.
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
            f"measure the validation loss more often, or take another law of curves."
        )
    return fit


def _ranged(loss: float, errors: Float[np.ndarray, " branches"]) -> AnnealedLoss:
    """A prediction with the range of its measured loss by the errors of predictions that were made alike."""
    deviation = float(np.sqrt(np.mean(errors**2)))
    reach = float(scipy.special.stdtrit(len(errors), (1 + LEVEL) / 2)) * deviation
    return AnnealedLoss(
        loss=loss, low=loss * math.exp(-reach), high=loss * math.exp(reach), standard_error=loss * deviation
    )


def _interpolated(x: np.ndarray, y: np.ndarray, kept: Bool[np.ndarray, " points"], at: float) -> float:
    """Linear between the two nearest of the kept points, ascending; beyond the last, along the last two."""
    x, y = x[kept], y[kept]
    right = int(np.clip(np.searchsorted(x, at), 1, len(x) - 1))
    return float(y[right - 1] + (y[right] - y[right - 1]) * (at - x[right - 1]) / (x[right] - x[right - 1]))
