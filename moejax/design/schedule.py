"""Find the schedule with the lowest loss at a horizon under a loss-curve law, by gradient-based optimization.

After the warm-up the rate never rises: it is peak · exp(-s), where s is a cumulative sum of squares, one per knot. This
makes the problem unconstrained. Between knots the logarithm of the rate is linear.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from moejax import minimize
from moejax.errors import UserError
from moejax.float64 import float64
from moejax.laws.curves.schedule_sums import sums_at
from moejax.laws.law import Law, coefficients
from moejax.ranges import Number

Rates = Float[np.ndarray, " updates"]

KNOTS = 200
"""Maximum number of knots of the schedule after the warm-up."""
FINAL = 1e-3
"""Minimum rate as a fraction of the peak, since laws use negative powers of rates."""


@dataclass(frozen=True, kw_only=True)
class BestSchedule:
    """The optimal schedule of a law, compared with usual schedules."""

    rates: Rates
    """Learning rate of every update."""
    loss: float
    """Loss at the horizon under the law."""
    others: Mapping[str, tuple[Rates, float]]
    """Usual schedules with the same peak, warm-up and horizon, and their losses under the law."""
    iterations: int

    @property
    def decays_from(self) -> int:
        """Return the number of updates after which the rate stays below 99 % of its peak."""
        return int(np.flatnonzero(self.rates >= 0.99 * self.rates.max())[-1]) + 1

    @property
    def final_share(self) -> float:
        """Return the last rate as a fraction of the peak."""
        return float(self.rates[-1] / self.rates.max())


def warmed_up(peak: float, warmup: int, after: Float[np.ndarray, " after"]) -> Rates:
    """Return a schedule with linear warm-up to the peak, followed by the fractions ``after`` of the peak."""
    return peak * np.concatenate([np.arange(1, warmup + 1) / max(warmup, 1), after])


def usual(steps: int, warmup: int, peak: float) -> dict[str, Rates]:
    """Return three usual schedules, keyed by a description.

    They are cosine decay to 10 % of the peak, cosine decay to 0, and a constant rate with linear decay over the last
    fifth.
    """
    done = np.arange(1, steps - warmup + 1) / (steps - warmup)
    wave = 0.5 * (1 + np.cos(np.pi * done))
    falls = np.minimum(1.0, (1 - done) / 0.2)
    shares = {
        "cosine to 10 %": 0.1 + 0.9 * wave,
        "cosine to 0": np.maximum(wave, FINAL),
        "constant, linear decay over the last 20 %": np.maximum(falls, FINAL),
    }
    return {name: warmed_up(peak, warmup, after) for name, after in shares.items()}


def final_loss(law: Law, rates: jax.Array | np.ndarray) -> Number:
    """Return a law's loss after the last update of a schedule, differentiable in law and rates."""
    return law(sums_at(rates))


@dataclass(frozen=True)
class _Objective:
    """Loss at the horizon as a function of the decrease of the log rate at every knot."""

    law: type
    steps: int
    warmup: int

    def rates(self, point: jax.Array, peak: jax.Array) -> jax.Array:
        count = self.steps - self.warmup
        taken = jnp.concatenate([jnp.zeros(1), jnp.cumsum(point**2)])
        floor = -np.log(FINAL)
        # Saturate smoothly at the floor.
        off = floor * jnp.tanh(taken / floor)
        at = jnp.linspace(0.0, 1.0, len(taken))
        after = jnp.exp(-jnp.interp(jnp.arange(1, count + 1) / count, at, off))
        rise = jnp.arange(1, self.warmup + 1) / max(self.warmup, 1)
        return peak * jnp.concatenate([rise, after])

    def __call__(self, point: jax.Array, shared: Mapping[str, Any], lane: jax.Array) -> jax.Array:
        law = self.law(**shared["coefficients"])
        return 1e3 * (final_loss(law, self.rates(point, shared["peak"])) - shared["loss"])


@functools.partial(jax.jit, static_argnums=0)
def _rates(objective: _Objective, point: jax.Array, peak: jax.Array) -> jax.Array:
    return objective.rates(point, peak)


_final_loss = jax.jit(final_loss)


FEWEST_AFTER_WARMUP = 10
"""Minimum number of updates after the warm-up."""


def check_horizon(steps: int, warmup: int, peak: float) -> None:
    """Check that a schedule can be chosen for the horizon.

    Raises:
      UserError: the horizon leaves no updates after the warm-up, or the peak is not above 0.
    """
    if not peak > 0:
        raise UserError(f"The peak learning rate must be above 0; got {peak:g}.")
    if steps < (least := warmup + FEWEST_AFTER_WARMUP):
        raise UserError(
            f"A horizon of {steps:,} steps leaves {max(steps - warmup, 0):,} steps after the warm-up of "
            f"{warmup:,}; give {least:,} steps or more."
        )


def best_schedule(law: Law, steps: int, *, warmup: int, peak: float, knots: int = KNOTS) -> BestSchedule:
    """Return the schedule with the lowest loss after ``steps`` updates whose rate does not rise after the warm-up.

    The schedule may be far from the fitted schedules, so verify this extrapolation by training.

    Raises:
      UserError: the horizon leaves no updates after the warm-up, or the peak is not above 0.
    """
    check_horizon(steps, warmup, peak)
    objective = _Objective(type(law), int(steps), int(warmup))
    knots = min(knots, steps - warmup)
    with float64():
        others = {
            name: (rates, float(_final_loss(law, jnp.asarray(rates))))
            for name, rates in usual(steps, warmup, peak).items()
        }
        shared = {
            "coefficients": {name: np.float64(value) for name, value in coefficients(law).items()},
            "peak": np.float64(peak),
            "loss": np.float64(min(loss for _, loss in others.values())),
        }
        done = np.arange(knots) / knots
        starts = np.sqrt([np.where(done >= begin, 3.0 / (knots * (1 - begin)), 1e-6) for begin in (0.0, 0.5, 0.8)])
        ended = minimize.minimize_lanes(objective, starts, shared, np.zeros(len(starts)), max_iterations=1500)
        best = int(np.argmin(ended.values))
        rates = np.array(_rates(objective, ended.points[best], peak))
        # Rounding must not turn a constant rate into a rise.
        rates[warmup:] = np.minimum.accumulate(rates[warmup:])
        loss = float(_final_loss(law, jnp.asarray(rates)))
    return BestSchedule(rates=rates, loss=loss, others=others, iterations=int(ended.iterations[best]))
