"""Minimize functions from many initial guesses in float64: L-BFGS, Newton and trust-region steps, Levenberg-Marquardt.

Initial guesses are Sobol points, which fill a cube more evenly than random points. A lane is one of several
minimizations that run in one compiled program.

Only this file uses jaxopt, which is no longer maintained, so jaxopt can be replaced here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moejax.float64 import float64
from moejax.say import CountCallback

STALLED_STEPS = 4
"""A lane stops after this many consecutive steps that lower the value by less than its rounding error."""

Objective = Callable[[Any, Any, Any], Any]
"""``(point, shared, lane) -> value``; hashable, so that equal objectives share one compiled program."""


@dataclass(frozen=True)
class Lanes:
    """Results of many minimizations of one function; every array has one entry per lane."""

    points: np.ndarray
    values: np.ndarray
    """Infinite for lanes without a finite value."""
    gradient_norms: np.ndarray
    iterations: np.ndarray


class Minimum(NamedTuple):
    """A point with the value and the derivatives of an objective there."""

    point: np.ndarray
    value: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def gradient_norm(self) -> float:
        """Euclidean norm of the gradient."""
        return float(np.linalg.norm(self.gradient))

    @property
    def is_finite(self) -> bool:
        """True if the value and both derivatives are finite."""
        return all(np.isfinite(part).all() for part in (self.value, self.gradient, self.hessian))


Residuals = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Residuals ``(points, residuals)`` at many points and their Jacobians ``(points, residuals, coordinates)``."""

SMALL_GAIN = 1e-6
"""Relative decrease of the sum of squares below which a step is small; a point converges after ``IN_A_ROW`` small
steps.
"""
IN_A_ROW = 3


def least_squares(residuals: Residuals, starts: np.ndarray, *, max_steps: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Minimize sums of squares from many initial guesses at once with the Levenberg-Marquardt method.

    Steps are solved for all points together. Only residuals and Jacobians are compiled, so a different number of
    residuals does not recompile the search.

    Returns:
      points, and their sums of squares, which are infinite if the sum at the initial guess is not finite.
    """
    points = np.array(starts, np.float64)
    here, slopes = residuals(points)
    with np.errstate(all="ignore"):
        value = np.nan_to_num(np.sum(here**2, axis=1), nan=np.inf, posinf=np.inf)
    damping, small = np.full(len(points), 1e-2), np.zeros(len(points), int)
    unfinished = np.isfinite(value)
    for _ in range(max_steps):
        if not unfinished.any():
            break
        with np.errstate(all="ignore"):
            turned = slopes.transpose(0, 2, 1)
            information, gradient = turned @ slopes, turned @ here[..., None]
            size = np.einsum("pcc->pc", information)
            damped = information + np.eye(points.shape[1]) * (damping[:, None] * (size + 1e-9))[:, :, None]
            usable = np.isfinite(damped).all(axis=(1, 2)) & np.isfinite(gradient).all(axis=(1, 2)) & unfinished
            damped[~usable], gradient[~usable] = np.eye(points.shape[1]), 0.0
            there = points - np.linalg.solve(damped, gradient)[..., 0]
            new, steeper = residuals(there)
            after = np.nan_to_num(np.sum(new**2, axis=1), nan=np.inf, posinf=np.inf)
            better = usable & (after < value) & np.isfinite(steeper).all(axis=(1, 2))
            little = better & (value - after < SMALL_GAIN * value)
        small = np.where(little, small + 1, np.where(better, 0, small))
        points[better], here[better], slopes[better] = there[better], new[better], steeper[better]
        value = np.where(better, after, value)
        damping = np.where(better, damping / 4, damping * 4)
        unfinished = usable & (small < IN_A_ROW) & (damping < 1e10)
    return points, value


def newton(objective: Objective, point: np.ndarray, shared: Any, lane: Any, *, max_steps: int = 20) -> Minimum:
    """Apply Newton steps from ``point``, shortened if needed, while they lower the gradient norm and do not raise the
    value."""
    here = _evaluated(objective, point, shared, lane)
    for _ in range(max_steps):
        better = _newton_step(objective, here, shared, lane)
        if better is None:
            break
        here = better
    return here


def _newton_step(objective: Objective, here: Minimum, shared: Any, lane: Any) -> Minimum | None:
    if not np.isfinite(here.hessian).all():
        return None
    direction = np.linalg.lstsq(here.hessian, here.gradient, rcond=1e-14)[0]
    for share in (1.0, 0.25, 0.0625):
        there = _evaluated(objective, here.point - share * direction, shared, lane)
        falls = there.gradient_norm < here.gradient_norm
        if falls and there.value <= here.value + 1e-12 * abs(here.value):
            return there
    return None


def polish(
    objective: Objective, point: np.ndarray, shared: Any, lane: Any, *, tolerance: float, max_steps: int = 5000
) -> Minimum:
    """Apply ``newton``, then trust-region steps if the gradient norm is still above ``tolerance``.

    Line searches and full Newton steps stop in a curved valley, because the curvature at a point is valid only for
    shorter steps. They also stop in a valley that leads to infinity, which occurs if a coefficient vanishes. Along the
    kinks of a robust penalty, steps are short: searches took 2,000 to 3,600 steps of 1 ms each. The tolerance is
    multiplied by the absolute value of the objective if that is above 1.
    """
    here = newton(objective, point, shared, lane)
    if here.gradient_norm <= tolerance * max(1.0, abs(here.value)) or not here.is_finite:
        return here

    # The import takes a tenth of a second, and few fits need it.
    import scipy.optimize

    # SciPy requests the value and its derivatives separately at one point.
    @functools.lru_cache(maxsize=2)
    def evaluated(at: bytes) -> Minimum:
        there = _evaluated(objective, np.frombuffer(at), shared, lane)
        # SciPy rejects a step to an infinite value, but reads its derivatives first.
        zero = np.zeros_like(there.gradient), np.zeros_like(there.hessian)
        return there if there.is_finite else Minimum(there.point, np.inf, *zero)

    ended = scipy.optimize.minimize(
        lambda x: evaluated(x.tobytes()).value,
        here.point,
        jac=lambda x: evaluated(x.tobytes()).gradient,
        hess=lambda x: evaluated(x.tobytes()).hessian,
        method="trust-exact",
        options={"gtol": tolerance, "maxiter": max_steps},
    )
    return newton(objective, ended.x, shared, lane)


def _evaluated(objective: Objective, point: np.ndarray, shared: Any, lane: Any) -> Minimum:
    with float64():
        value, gradient, hessian = _second_order(objective, point, shared, lane)
    return Minimum(np.asarray(point), float(value), np.asarray(gradient), np.asarray(hessian))


def values(
    objective: Objective,
    points: np.ndarray,
    shared: Any,
    lane: Any,
    *,
    chunk: int | None = None,
    progress: CountCallback | None = None,
) -> np.ndarray:
    """Return the value at every point, infinite if it is not finite. ``lane`` is the same for all points.

    Args:
      chunk: number of points computed together; by default as many as fit in memory.
    """
    chunks, chunk = [], chunk or _points_at_once(lane)
    with float64():
        for i in range(0, len(points), chunk):
            chunks.append(np.asarray(_values(objective, _filled(points[i : i + chunk], chunk, np.nan), shared, lane)))
            if progress:
                progress(min(i + chunk, len(points)), len(points))
    flat = np.concatenate(chunks)[: len(points)]
    return np.where(np.isfinite(flat), flat, np.inf)


def minimize_lanes(
    objective: Objective,
    starts: np.ndarray,
    shared: Any,
    lanes: Any,
    *,
    tolerance: float = 1e-8,
    max_iterations: int = 500,
    chunk: int = 8,
    progress: CountCallback | None = None,
) -> Lanes:
    """Minimize ``objective(point, shared, lane)`` from every initial guess in ``starts``, with its entry of ``lanes``.

    On a CPU the lanes of a chunk run one after another, each in its own loop, and the chunks run on all cores. Vmapped
    lanes would all wait for the longest line search. On an accelerator the lanes of a chunk are vmapped.
    """

    def run(offset: int) -> Lanes:
        # Padding rows start at NaN and stop immediately.
        begin = _filled(starts[offset : offset + chunk], chunk, np.nan)
        part = jax.tree.map(lambda x: _filled(x[offset : offset + chunk], chunk, 0.0), lanes)
        with float64():
            ended = _descend(objective, begin, shared, part, tolerance, max_iterations)
            return Lanes(*(np.asarray(array)[: len(starts) - offset] for array in ended))

    done, pool = 0, ThreadPoolExecutor((os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1)
    try:
        pending = [pool.submit(run, offset) for offset in range(0, len(starts), chunk)]
        for future in as_completed(pending):
            done += len(future.result().values)
            if progress:
                progress(done, len(starts))
    finally:
        # After Ctrl-C, only the running chunks are finished.
        pool.shutdown(cancel_futures=True)
    ended = [future.result() for future in pending]
    return Lanes(*(np.concatenate([getattr(part, f.name) for part in ended]) for f in fields(Lanes)))


def _filled(rows: Any, length: int, filling: float) -> np.ndarray:
    """Pad rows to a length, so that every chunk has the compiled shape."""
    rows = np.asarray(rows)
    missing = length - len(rows)
    return np.concatenate([rows, np.full((missing, *rows.shape[1:]), filling, rows.dtype)]) if missing else rows


MOST_POINTS = 1024
AT_ONCE = 2**23
"""Maximum total length of the lanes that are evaluated together: 64 MB per array, of which several exist at a time."""


def _points_at_once(lane: Any) -> int:
    """Return the number of points that are evaluated together, so that they fit in memory for any lane length."""
    longest = max((np.size(leaf) for leaf in jax.tree.leaves(lane)), default=1)
    return int(np.clip(AT_ONCE // max(longest, 1), 1, MOST_POINTS))


@functools.partial(jax.jit, static_argnums=0)
def _descend(
    objective: Objective, starts: Any, shared: Any, lanes: Any, tolerance: Any, max_iterations: Any
) -> tuple[Any, Any, Any, Any]:
    # The import takes longer than answers from a stored fit, which need no search.
    import jaxopt

    def scaled(point: Any, lane: Any, scale: Any) -> Any:
        return objective(point, shared, lane) * scale

    # jit traces the function once, although the line search calls it in many places.
    both = jax.jit(jax.value_and_grad(scaled))
    solver = jaxopt.LBFGS(
        both, value_and_grad=True, linesearch="zoom", history_size=10, maxls=20, unroll=False, implicit_diff=False
    )

    def begin(point: Any, lane: Any) -> tuple[Any, Any]:
        state = solver.init_state(point, lane, 1.0)
        # The scale keeps the first step, which is as long as the gradient, from overshooting.
        scale = 1.0 / jnp.maximum(1.0, jnp.linalg.norm(state.grad))
        return state._replace(value=state.value * scale, grad=state.grad * scale), scale

    def one(arguments: Any) -> Any:
        start, lane = arguments

        def unfinished(carry: Any) -> Any:
            _, state, scale, steps, stalled = carry
            steep = state.error > tolerance * jnp.maximum(scale, jnp.abs(state.value))
            return steep & (stalled < STALLED_STEPS) & (steps < max_iterations) & jnp.isfinite(state.value)

        def step(carry: Any) -> Any:
            point, state, scale, steps, stalled = carry
            # After a failed line search the L-BFGS memory is discarded and the descent restarts here.
            state, scale = jax.lax.cond(stalled > 0, lambda: begin(point, lane), lambda: (state, scale))
            new_point, new = solver.update(point, state, lane, scale)
            better = new.value < state.value - 1e-15 * jnp.abs(state.value)
            point, state = jax.lax.cond(better, lambda: (new_point, new), lambda: (point, state))
            return point, state, scale, steps + 1, jnp.where(better, 0, stalled + 1)

        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(begin, start, lane))
        unstarted = nothing[0]._replace(error=jnp.inf), nothing[1]
        # A stall count of 1 makes the first step initialize the solver.
        point, state, scale, steps, _ = jax.lax.while_loop(unfinished, step, (start, *unstarted, 0, 1))
        value = jnp.where(jnp.isfinite(state.value), state.value / scale, jnp.inf)
        return point, value, jnp.linalg.norm(state.grad) / scale, steps

    one_by_one = jax.default_backend() == "cpu"
    return jax.lax.map(one, (starts, lanes)) if one_by_one else jax.vmap(one)((starts, lanes))


@functools.partial(jax.jit, static_argnums=0)
def _values(objective: Objective, points: Any, shared: Any, lane: Any) -> Any:
    return jax.vmap(lambda point: objective(point, shared, lane))(points)


@functools.partial(jax.jit, static_argnums=0)
def _second_order(objective: Objective, point: Any, shared: Any, lane: Any) -> tuple[Any, Any, Any]:
    # The objective is traced and compiled once for the value, the gradient and the Hessian.
    def first(point: Any) -> tuple[Any, tuple[Any, Any]]:
        value, gradient = jax.value_and_grad(objective)(point, shared, lane)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(first, has_aux=True)(point)
    return value, gradient, hessian


BITS = 30


def sobol(dimensions: int, count: int, seed: int) -> np.ndarray:
    """Return Float64[count, dimensions]: the first points of a Sobol sequence in [0, 1), scrambled with a seed.

    Direction numbers are those of Joe and Kuo (2008), "Constructing Sobol sequences with better two-dimensional
    projections". Scrambling uses random lower triangular matrices and a shift (Matousek 1998). The points equal those
    of ``scipy.stats.qmc.Sobol``, which is used only for more than 37 dimensions, because its import takes longer than a
    fit. Points are balanced if ``count`` is a power of 2.
    """
    if dimensions > len(DIRECTIONS):
        from scipy.stats import qmc

        return qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random(count)
    (random,), powers = np.random.default_rng(seed).spawn(1), np.uint32(1) << np.arange(BITS, dtype=np.uint32)
    shift = random.integers(2, size=(dimensions, BITS), dtype=np.uint32) @ powers
    matrices = np.tril(random.integers(2, size=(dimensions, BITS, BITS), dtype=np.uint32))
    matrices[:, np.arange(BITS), np.arange(BITS)] = 1
    # The axes are [dimension, bit of the point, binary digit], where the first digit is 1/2.
    digits = np.stack([_digits(*DIRECTIONS[dimension]) for dimension in range(dimensions)])
    scrambled = np.einsum("dij,dkj->dki", matrices, digits) % 2 @ powers[::-1]
    number = np.arange(count)
    gray = number ^ (number >> 1)
    points = np.repeat(shift[None], count, axis=0)
    for bit in range(BITS):
        points ^= np.where((gray >> bit & 1)[:, None], scrambled[:, bit], np.uint32(0))
    return points / 2.0**BITS


def _digits(polynomial: int, first: tuple[int, ...]) -> np.ndarray:
    """Return the binary digits of a dimension's direction numbers, from the recurrence of its primitive polynomial."""
    numbers = list(first or (1,) * BITS)
    degree = len(first)
    for j in range(len(numbers), BITS):
        # The highest and the lowest coefficient of a primitive polynomial are 1.
        number = numbers[j - degree]
        for k in range(1, degree + 1):
            number ^= (polynomial >> (degree - k) & 1) * (numbers[j - k] << k)
        numbers.append(number)
    return np.array(
        [[number >> (j - i) & 1 if i <= j else 0 for i in range(BITS)] for j, number in enumerate(numbers)], np.uint32
    )


DIRECTIONS: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, ()),
    (3, (1,)),
    (7, (1, 3)),
    (11, (1, 3, 1)),
    (13, (1, 1, 1)),
    (19, (1, 1, 3, 3)),
    (25, (1, 3, 5, 13)),
    (37, (1, 1, 5, 5, 17)),
    (41, (1, 1, 5, 5, 5)),
    (47, (1, 1, 7, 11, 19)),
    (55, (1, 1, 5, 1, 1)),
    (59, (1, 1, 1, 3, 11)),
    (61, (1, 3, 5, 5, 31)),
    (67, (1, 3, 3, 9, 7, 49)),
    (91, (1, 1, 1, 15, 21, 21)),
    (97, (1, 3, 1, 13, 27, 49)),
    (103, (1, 1, 1, 15, 7, 5)),
    (109, (1, 3, 1, 15, 13, 25)),
    (115, (1, 1, 5, 5, 19, 61)),
    (131, (1, 3, 7, 11, 23, 15, 103)),
    (137, (1, 3, 7, 13, 13, 15, 69)),
    (143, (1, 1, 3, 13, 7, 35, 63)),
    (145, (1, 3, 5, 9, 1, 25, 53)),
    (157, (1, 3, 1, 13, 9, 35, 107)),
    (167, (1, 3, 1, 5, 27, 61, 31)),
    (171, (1, 1, 5, 11, 19, 41, 61)),
    (185, (1, 3, 5, 3, 3, 13, 69)),
    (191, (1, 1, 7, 13, 1, 19, 1)),
    (193, (1, 3, 7, 5, 13, 19, 59)),
    (203, (1, 1, 3, 9, 25, 29, 41)),
    (211, (1, 3, 5, 13, 23, 1, 55)),
    (213, (1, 3, 7, 3, 13, 59, 17)),
    (229, (1, 3, 1, 3, 5, 53, 69)),
    (239, (1, 1, 5, 5, 23, 33, 13)),
    (241, (1, 1, 7, 7, 1, 61, 123)),
    (247, (1, 1, 7, 9, 13, 61, 49)),
    (253, (1, 3, 3, 5, 3, 55, 33)),
)
"""Primitive polynomial of each dimension (binary coefficients), and its first direction numbers."""
