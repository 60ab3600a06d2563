"""Minimize functions by L-BFGS on autodiff gradients in float64, from one start or many.

No other file uses jaxopt, which is no longer maintained, so that it can be replaced here alone.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from moejax.float64 import float64
from moejax.progress import CountCallback


def _lbfgs() -> Any:
    """Return the class ``jaxopt.LBFGS`` without importing the rest of jaxopt, unless it is imported already.

    ``import jaxopt`` imports all of its solvers, with SciPy's optimizers and numba, and warns that it is no longer
    maintained. The solver's file is imported through an empty package, whose modules are then removed.
    """
    spec = importlib.util.find_spec("jaxopt")
    if "jaxopt" in sys.modules or spec is None:
        return importlib.import_module("jaxopt").LBFGS
    sys.modules["jaxopt"] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module("jaxopt._src.lbfgs").LBFGS
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "jaxopt"]:
            del sys.modules[name]


LBFGS = _lbfgs()

STALLED_STEPS = 4
"""Consecutive steps that lower the value by less than its rounding error, after which a lane stops."""


@dataclass(frozen=True)
class Minimum:
    """The result of a minimization."""

    point: Any
    """The argument, shaped like the start, in float64."""
    value: float
    gradient_norm: float
    iterations: int
    converged: bool
    """True if the gradient norm is below the tolerance, relative to a value above 1."""


@dataclass(frozen=True)
class Lanes:
    """Results of many minimizations of one function; every array has one entry per lane."""

    points: np.ndarray
    values: np.ndarray
    """Infinite for lanes without a finite value."""
    gradient_norms: np.ndarray
    iterations: np.ndarray


def minimise(fun: Callable[[Any], Any], start: Any, *, tolerance: float = 1e-10, max_iterations: int = 500) -> Minimum:
    """Minimize ``fun``, a scalar function of a pytree of real numbers, from ``start``.

    L-BFGS finds the neighbourhood of a minimum. Newton steps on the exact Hessian then converge to the last digits,
    where a line search no longer sees the value decrease. Runs in float64 whatever the process's default.

    Raises:
      ValueError: the value at the start is not finite.
    """
    with float64():
        flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), start))

        def objective(point: Any, shared: None, lane: None) -> Any:
            return jnp.asarray(fun(unravel(point)), jnp.float64)

        if not np.isfinite(value := float(objective(flat, None, None))):
            raise ValueError(f"The function to minimise is {value} at its start; start where it is finite.")
        points, _, _, steps = _descend(objective, flat[None], None, None, tolerance, max_iterations)
        point, value, norm, newton_steps = newton(objective, np.asarray(points[0]), None, None)
        return Minimum(
            point=unravel(jnp.asarray(point)),
            value=value,
            gradient_norm=norm,
            iterations=int(steps[0]) + newton_steps,
            converged=norm <= tolerance * max(1.0, abs(value)),
        )


Residuals = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Residuals ``(points, residuals)`` at many points and their Jacobians ``(points, residuals, coordinates)``."""

SMALL_GAIN = 1e-6
"""Relative decrease of the sum of squares below which a step is small; a point converges after ``IN_A_ROW`` small
steps.
"""
IN_A_ROW = 3


def least_squares(residuals: Residuals, starts: np.ndarray, *, max_steps: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Minimize sums of squares from many starts at once by the Levenberg-Marquardt method.

    Steps are solved for all points together. Only residuals and Jacobians are compiled, so that a new number of
    residuals does not compile the search again.

    Returns:
      points, and their sums of squares, infinite if the start has none.
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


Objective = Callable[[Any, Any, Any], Any]
"""``(point, shared, lane) -> value``; hashable, so that equal objectives share one compiled program."""


def newton(
    objective: Objective, point: np.ndarray, shared: Any, lane: Any, *, max_steps: int = 20
) -> tuple[np.ndarray, float, float, int]:
    """Apply Newton steps from ``point``, shortened if needed, while they lower the gradient norm and do not raise the
    value.

    Returns:
      point, value, gradient norm, steps taken.
    """
    with float64():
        here = point, *_second_order(objective, point, shared, lane)
        steps = 0
        while steps < max_steps and (better := _newton_step(objective, here, shared, lane)) is not None:
            here, steps = better, steps + 1
        point, value, gradient, _ = here
        return np.asarray(point), float(value), float(np.linalg.norm(gradient)), steps


def polish(
    objective: Objective, point: np.ndarray, shared: Any, lane: Any, *, tolerance: float, max_steps: int = 5000
) -> tuple[np.ndarray, float, float, int]:
    """Apply ``newton``, then trust-region steps if the gradient norm is still above ``tolerance``.

    A curved valley, or one that leads to infinity, stops a line search and full Newton steps, since its curvature holds
    only for shorter steps. If a coefficient vanishes, its coordinate ends far away. Along the kinks of a robust
    penalty, steps are short: 2,000 to 3,600 of a millisecond each were observed. As in ``Minimum.converged``, the
    tolerance is relative to a value above 1.

    Returns:
      as ``newton``.
    """
    ended = point, value, norm, steps = newton(objective, point, shared, lane)
    if norm <= tolerance * max(1.0, abs(value)) or not np.isfinite(value):
        return ended

    # The import takes a tenth of a second, and few fits need it.
    import scipy.optimize

    def derivatives(at: np.ndarray) -> list[np.ndarray]:
        with float64():
            return [np.asarray(part) for part in _second_order(objective, at, shared, lane)]

    if not all(np.isfinite(part).all() for part in derivatives(np.asarray(point))):
        # Without finite curvature a trust region is not defined.
        return ended

    # SciPy requests the value and its derivatives separately at one point.
    @functools.lru_cache(maxsize=2)
    def evaluated(at: bytes) -> tuple[float, np.ndarray, np.ndarray]:
        value, *slopes = derivatives(np.frombuffer(at))
        if all(np.isfinite(part).all() for part in (value, *slopes)):
            return float(value), slopes[0], slopes[1]
        # SciPy rejects a step to a non-finite value, but reads its derivatives first.
        return np.inf, np.zeros_like(slopes[0]), np.zeros_like(slopes[1])

    found = scipy.optimize.minimize(
        lambda x: evaluated(x.tobytes())[0],
        point,
        jac=lambda x: evaluated(x.tobytes())[1],
        hess=lambda x: evaluated(x.tobytes())[2],
        method="trust-exact",
        options={"gtol": tolerance, "maxiter": max_steps},
    )
    point, value, norm, more = newton(objective, found.x, shared, lane)
    return point, value, norm, steps + int(found.nit) + more


def _newton_step(objective: Objective, here: tuple[Any, ...], shared: Any, lane: Any) -> tuple[Any, ...] | None:
    """Return the next point with value, gradient and Hessian; None if no part of the step is better."""
    point, value, gradient, hessian = here
    if not np.isfinite(hessian).all():
        return None
    direction = np.linalg.lstsq(np.asarray(hessian), np.asarray(gradient), rcond=1e-14)[0]
    for share in (1.0, 0.25, 0.0625):
        there = point - share * direction, *_second_order(objective, point - share * direction, shared, lane)
        falls = np.linalg.norm(there[2]) < np.linalg.norm(gradient)
        if falls and float(there[1]) <= float(value) + 1e-12 * abs(float(value)):
            return there
    return None


def values(
    objective: Objective,
    points: np.ndarray,
    shared: Any,
    lane: Any,
    *,
    chunk: int | None = None,
    progress: CountCallback | None = None,
) -> np.ndarray:
    """Return the value at every point, infinite if not finite. ``lane`` is the same for all.

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


def minimise_lanes(
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
    """Minimize ``objective(point, shared, lane)`` from every start; ``lanes`` has the leading axis of ``starts``."""
    results, done = [], 0
    for result in lane_chunks(objective, starts, shared, lanes, tolerance, max_iterations, chunk):
        results.append(result)
        done += len(result[1].values)
        if progress:
            progress(done, len(starts))
    ordered = [lanes_of_chunk for _, lanes_of_chunk in sorted(results, key=lambda result: result[0])]
    return Lanes(*(np.concatenate([getattr(f, name) for f in ordered]) for name in Lanes.__dataclass_fields__))


def lane_chunks(
    objective: Objective,
    starts: np.ndarray,
    shared: Any,
    lanes: Any,
    tolerance: float,
    max_iterations: int,
    chunk: int = 8,
) -> Iterator[tuple[int, Lanes]]:
    """Minimize like ``minimise_lanes``, and yield chunks as they finish, each with the index of its first lane.

    On a CPU the lanes of a chunk run one after another, each in its own loop, and the chunks run on all cores. Vmapped
    lanes would all wait for the longest line search. On an accelerator the lanes of a chunk are vmapped.
    """
    pending: set[Future[tuple[int, Lanes]]] = set()
    offsets = iter(range(0, len(starts), chunk))
    with ThreadPoolExecutor(max_workers=_workers()) as pool:
        for offset in offsets:
            # Padding rows start at NaN and stop immediately.
            part = (
                _filled(starts[offset : offset + chunk], chunk, np.nan),
                jax.tree.map(lambda x, i=offset: _filled(x[i : i + chunk], chunk, 0.0), lanes),
            )
            count = min(chunk, len(starts) - offset)
            pending.add(pool.submit(_run_chunk, objective, part, shared, tolerance, max_iterations, offset, count))
            if len(pending) > _workers():
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _run_chunk(
    objective: Objective,
    part: tuple[np.ndarray, Any],
    shared: Any,
    tolerance: float,
    max_iterations: int,
    offset: int,
    count: int,
) -> tuple[int, Lanes]:
    with float64():
        ended = _descend(objective, part[0], shared, part[1], tolerance, max_iterations)
        return offset, Lanes(*(np.asarray(array)[:count] for array in ended))


def _workers() -> int:
    return (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1


def _filled(rows: Any, length: int, filling: float) -> np.ndarray:
    """Pad rows to a length, so that every chunk has the compiled shape."""
    rows = np.asarray(rows)
    missing = length - len(rows)
    return np.concatenate([rows, np.full((missing, *rows.shape[1:]), filling, rows.dtype)]) if missing else rows


MOST_POINTS = 1024
AT_ONCE = 2**23
"""Numbers in the lanes that are evaluated at once: 64 MB per array, and several arrays exist at a time."""


def _points_at_once(lane: Any) -> int:
    """Return the number of points that are evaluated together, so that they fit in memory for any lane length."""
    longest = max((np.size(leaf) for leaf in jax.tree.leaves(lane)), default=1)
    return int(np.clip(AT_ONCE // max(longest, 1), 1, MOST_POINTS))


@functools.partial(jax.jit, static_argnums=0)
def _descend(
    objective: Objective, starts: Any, shared: Any, lanes: Any, tolerance: Any, max_iterations: Any
) -> tuple[Any, Any, Any, Any]:
    """Run L-BFGS for every lane, and return points, values, gradient norms, iterations."""

    def scaled(point: Any, lane: Any, scale: Any) -> Any:
        return objective(point, shared, lane) * scale

    # jit traces the function once, although the line search calls it in many places.
    both = jax.jit(jax.value_and_grad(scaled))
    solver = LBFGS(
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
    # The objective is traced and compiled once for all three.
    def first(point: Any) -> tuple[Any, tuple[Any, Any]]:
        value, gradient = jax.value_and_grad(objective)(point, shared, lane)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(first, has_aux=True)(point)
    return value, gradient, hessian
