"""Compute profile intervals: the values of a coefficient or a functional that the runs do not reject."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.objective import FitObjective
from moejax.fit.uncertainty.derivatives import FitDerivatives, Functional, derivatives, not_one_number
from moejax.fit.uncertainty.undetermined import FLAT
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.laws.law import Law

FARTHEST = 200.0
"""Standard errors from the optimum beyond which an interval is reported as open."""
SHORTEST = 1e-3
"""Smallest step, in standard errors. An interval is also reported as open if no step of this size succeeds."""
STILL = 1e-9
"""Ratio of standard error to value below which a number counts as at a bound of the search."""
NEWTON_STEPS = 30
CLOSE = 1e-6
"""Tolerance for the constrained value, in standard errors."""
STIFFNESS = 100.0
"""Penalty for a deviation by one standard error, in units of its effect on the objective."""


def profile(result: FitResult, runs: Runs, functional: Functional, level: float = 0.9) -> Interval:
    """Return the profile interval of a number: the values that the runs do not reject.

    At each value, the objective is minimized over the laws that give the number this value. The interval ends where the
    objective exceeds its minimum by ``chi²(level) · dispersion / 2``, where ``chi²(level)`` is the quantile of
    chi-squared with one degree of freedom. For squared residuals this is the likelihood ratio; for the Huber penalty it
    is a robust counterpart. Unlike a standard error, the interval accounts for nonlinearity, and unlike a bootstrap, it
    is not random. A bound that the runs do not determine is infinite.

    Raises:
      UserError: the functional does not give one finite number, or no coefficient changes the number.
    """
    walk = _walk(result, runs, functional, level)
    middle = walk.middle
    low, high = (float(walk.back(walk.end(sign))) for sign in (-1.0, 1.0))
    low = -np.inf if middle > 0 and low == 0 else low
    return Interval(low=low, middle=middle, high=high, deviation=walk.deviation)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A profile of the objective over a number's values, with all coefficients refitted."""

    values: Float[np.ndarray, " points"]
    """Ascending values, including the best value."""
    rises: Float[np.ndarray, " points"]
    """Rise of the objective above its minimum in units of chi²: twice the rise divided by the dispersion."""
    limit: float
    """Rise at which the interval of ``profile`` ends."""


def curve(result: FitResult, runs: Runs, functional: Functional, level: float = 0.9, farthest: float = 4.0) -> Curve:
    """Return the profile of a number, in steps of half a standard error, to well beyond the limit.

    Args:
      farthest: maximum distance in standard errors on a side where the profile does not cross the limit.

    Raises:
      UserError: like ``profile``.
    """
    walk = _walk(result, runs, functional, level)
    points = [(walk.middle, 0.0)]
    for sign in (-1.0, 1.0):
        state, place = walk.first, walk.start
        for _ in range(round(2 * farthest)):
            target = place + sign * 0.5 * walk.unit
            reached = walk.reached(state, place, target)
            if reached is None:
                break
            state, place = reached, target
            rise = walk.rise(state)
            points.append((float(walk.back(place)), rise))
            if rise > 2.5 * walk.limit:
                break
    values, rises = np.array(sorted(points)).T
    return Curve(
        values=values,
        rises=2 * rises / walk.at.dispersion,
        limit=2 * walk.limit / walk.at.dispersion,
    )


@dataclass(frozen=True, kw_only=True)
class _Walk:
    """State of a profile computation; positive numbers are profiled in their logarithm."""

    at: FitDerivatives
    functional: Functional
    middle: float
    start: float
    """Optimum in the profiled coordinate."""
    unit: float
    """Standard error in the profiled coordinate."""
    back: Callable[[float], float]
    limit: float
    deviation: float

    @functools.cached_property
    def first(self) -> np.ndarray:
        """Coordinates of the fit, with the Lagrange multiplier of the constraint."""
        return np.append(self.at.point, 0.0)

    def rise(self, state: np.ndarray) -> float:
        """Return the rise of the objective above its minimum."""
        return float(self._equations(state, self.start)[0]) - self._lowest

    @functools.cached_property
    def _lowest(self) -> float:
        return float(self._equations(self.first, self.start)[0])

    def end(self, sign: float) -> float:
        """Return the coordinate at which the profile crosses the limit, searched in growing steps from the last refit.

        The result is infinite if there is no crossing within ``FARTHEST`` standard errors, or if no refit succeeds.
        """
        # The import takes longer than a fit without a profile.
        from scipy.optimize import root_scalar

        state, inside, step = self.first, 0.0, sign * self.unit

        def excess(steps: float) -> float:
            nonlocal state, inside
            reached = self.reached(state, self.start + inside * step, self.start + steps * step)
            if reached is None:
                return float("nan")
            if (value := self.rise(reached) - self.limit) < 0 and steps > inside:
                state, inside = reached, steps
            return value

        stride = 0.5
        while inside < FARTHEST and stride > SHORTEST:
            outside = inside + stride
            value = excess(outside)
            if value >= 0:
                return self.start + step * root_scalar(excess, bracket=(inside, outside), rtol=1e-4).root
            stride = 0.25 * stride if np.isnan(value) else 0.5 * outside
        return float(np.copysign(np.inf, sign))

    def reached(self, state: np.ndarray, begin: float, end: float, halvings: int = 5) -> np.ndarray | None:
        """Return the constrained optimum at ``end``, starting from ``state``; bisect the step if this fails."""
        reached = self._constrained(state, end)
        if reached is not None or not halvings:
            return reached
        middle = (begin + end) / 2
        halfway = self.reached(state, begin, middle, halvings - 1)
        return None if halfway is None else self.reached(halfway, middle, end, halvings - 1)

    def _constrained(self, state: np.ndarray, target: float) -> np.ndarray | None:
        """Return the optimum under the constraint that the functional is ``target``, with the multiplier; None if the
        search fails.

        Newton's method oscillates where a run's residual crosses Huber's threshold. The path of optima may jump there;
        the fallback, a descent, finds the new optimum.
        """
        polished = self._newton(state, target)
        return self._descent(state, target) if polished is None else polished

    def _descent(self, state: np.ndarray, target: float) -> np.ndarray | None:
        """Compute ``_constrained`` by an augmented Lagrangian with trust-region minimization."""
        from scipy.optimize import minimize

        point, multiplier = state[:-1], 0.0
        scale = float(self.at.data["scale"])
        stiffness = STIFFNESS * self.at.dispersion / scale

        # SciPy asks for the value and its derivatives separately at one point.
        @functools.lru_cache(maxsize=2)
        def evaluated(here: bytes, multiplier: float) -> tuple[float, np.ndarray, np.ndarray, float]:
            both = np.append(np.frombuffer(here), multiplier)
            value, slope, second = self._equations(both, target, stiffness)
            missed = float(slope[-1])
            lagrangian = float(value) / scale + multiplier * missed + 0.5 * stiffness * missed**2
            finite = np.isfinite(slope).all() and np.isfinite(second).all() and np.isfinite(lagrangian)
            return lagrangian if finite else np.inf, slope[:-1], second[:-1, :-1], missed

        for _ in range(8):
            if not np.isfinite(evaluated(point.tobytes(), multiplier)[0]):
                return None
            minimum = minimize(
                lambda x, m=multiplier: evaluated(x.tobytes(), m)[0],
                point,
                jac=lambda x, m=multiplier: evaluated(x.tobytes(), m)[1],
                hess=lambda x, m=multiplier: evaluated(x.tobytes(), m)[2],
                method="trust-exact",
                options={"gtol": 1e-9, "maxiter": 300},
            )
            missed = evaluated(minimum.x.tobytes(), multiplier)[3]
            if not np.isfinite(missed):
                return None
            point, multiplier = minimum.x, multiplier + stiffness * missed
            if abs(missed) < CLOSE:
                return np.append(point, multiplier)
        return None

    def _newton(self, state: np.ndarray, target: float) -> np.ndarray | None:
        """Solve the Lagrange equations by Newton's method, from a state near the solution."""
        for _ in range(NEWTON_STEPS):
            _, residual, jacobian = self._equations(state, target)
            if not (np.isfinite(residual).all() and np.isfinite(jacobian).all()):
                # The step led to a law without a finite functional, such as a law without an optimum.
                return None
            step = np.linalg.lstsq(jacobian, residual, rcond=1e-13)[0]
            state = state - step / max(1.0, float(np.abs(step[:-1]).max()))
            if not np.isfinite(state).all():
                return None
            if np.abs(step[:-1]).max() < 1e-9:
                return state
        return None

    def _equations(self, state: np.ndarray, target: float, stiffness: float = 0.0) -> tuple[Any, Any, Any]:
        held = target, self.unit, stiffness
        with float64():
            parts = _lagrange(self.at.objective, self.functional, state, self.at.data, self.at.weight, held)
        return tuple(map(np.asarray, parts))


def _walk(result: FitResult, runs: Runs, functional: Functional, level: float) -> _Walk:
    at = derivatives(result, runs)
    numbers = at.evaluate(functional)
    if numbers.size != 1 or not np.isfinite(numbers).all():
        raise UserError(not_one_number("A profile", numbers))
    slope = at.slopes(functional)[0]
    least = STILL * abs(float(numbers[0]))
    spread = float(np.sqrt(max(slope @ at.solve(slope[:, None])[:, 0] * at.dispersion, 0.0)))
    if not spread > least:
        # Huber's Hessian includes only the few runs within delta, and may not be positive definite. The expected
        # Hessian includes all runs.
        inverse = np.linalg.pinv(at.curvature, rcond=FLAT, hermitian=True)
        spread = float(np.sqrt(max(slope @ inverse @ slope * at.dispersion, 0.0)))
    if not spread > least:
        raise UserError(
            "No fitted coefficient affects this number at the end of the search, so the runs do not determine it; "
            "choose another number."
        )
    limit = float(2 * scipy.special.gammaincinv(0.5, level)) * at.dispersion / 2
    middle = float(numbers[0])
    # Positive numbers are profiled in their logarithm, because bounds may be factors away and are never below 0.
    walked, there, back, unit = (
        (_Logarithm(functional), np.log, np.exp, spread / middle) if middle > 0 else (functional, float, float, spread)
    )
    start = float(there(middle))
    return _Walk(
        at=at, functional=walked, middle=middle, start=start, unit=unit, back=back, limit=limit, deviation=spread
    )


@dataclass(frozen=True)
class _Logarithm:
    """The logarithm of a functional; equal for equal functionals, so that it is compiled once."""

    functional: Functional

    def __call__(self, law: Law) -> Any:
        return jnp.log(ravel_pytree(self.functional(law))[0][0])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _lagrange(
    objective: FitObjective,
    functional: Functional,
    state: jax.Array,
    data: Mapping[str, Any],
    weight: jax.Array,
    target: tuple[Any, Any, Any],
) -> tuple[Any, Any, Any]:
    """Return the objective, the Lagrange equations and their Jacobian at a state (point and multiplier).

    ``target`` holds the functional's target value, the unit of deviations from it, and the stiffness of the quadratic
    penalty on deviations (an augmented Lagrangian).
    """

    def value(point: jax.Array) -> Any:
        return jnp.sum(weight * objective.penalties(point, data))

    def lagrangian(both: jax.Array) -> tuple[Any, Any]:
        number, least = ravel_pytree(functional(objective.law_at(both[:-1], data)))[0][0], value(both[:-1])
        missed = (number - target[0]) / target[1]
        return least / data["scale"] + both[-1] * missed + 0.5 * target[2] * missed**2, least

    def equations(both: jax.Array) -> tuple[Any, tuple[Any, Any]]:
        slope, least = jax.grad(lagrangian, has_aux=True)(both)
        return slope, (least, slope)

    # One Jacobian traces and compiles everything once.
    second, (least, slope) = jax.jacfwd(equations, has_aux=True)(state)
    return least, slope, second
