"""Check numerically that closed forms are optimal.

``check`` uses only the objective: derivatives come from ``jax.grad`` and ``jax.hessian``, and the argmin from searches
that start elsewhere. All computations are in float64, independent of the process's flag.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree

from moejax.float64 import float64
from moejax.laws.design import Design, Scalar

Partial = jax.tree_util.Partial
"""A function bound to its first arguments, as a pytree whose leaves are these arguments."""
Variables = Mapping[str, Any]
"""Positive numbers by name."""

NEWTON_TOLERANCE = 1e-6
"""Maximum relative distance of a variable from the stationary point, to first order."""
ARGMIN_TOLERANCE = 1e-6
"""Maximum relative difference of the numerical argmin, if float64 can resolve it."""

RESTARTS = 5
"""Maximum number of restarts of a search that stopped because of rounding."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim that ``value`` minimizes ``objective`` among all positive variables with the same ``held``.

    ``objective`` and ``held`` are functions of the variables. Pass anything else through
    ``Partial(function, law, ...)``, so that ``check`` compiles once for all coefficients. Held quantities, such as a
    FLOP budget, are products of powers of the variables, so they are linear in log variables.
    """

    statement: str
    """Closed form, as a formula."""
    source: str
    """Document and equation."""
    value: Variables
    """Value of the closed form."""
    objective: Callable[[Variables], Any]
    objective_name: str = "loss"
    held: Callable[[Variables], Mapping[str, Any]] = Partial(lambda variables: {})  # noqa: RUF009
    notes: tuple[str, ...] = ()
    """Remarks on the value, as sentences."""


@dataclass(frozen=True)
class Checked:
    """Result of ``check``. Slopes and curvatures are per e-fold of a variable (nats, if the objective is a loss)."""

    value: dict[str, float]
    """Variables of the closed form, and the objective's value there, keyed by ``objective_name``."""
    residual: float
    """Norm of the gradient along the constraint, in log variables; 0 if the claim is stationary."""
    curvature: float
    """Smallest eigenvalue of the Hessian along the constraint, in log variables; positive at a minimum."""
    numeric: dict[str, float]
    """Numerical argmin: the worse of two searches, one from each side of the claimed value."""
    agreement: float
    """Largest relative difference between closed form and argmin."""
    resolution: float
    """Relative distance from a minimum of this curvature within which losses are equal in float64."""
    held: dict[str, float]
    """Held quantities."""

    @property
    def holds(self) -> bool:
        """Return whether the closed form is stationary, a minimum, and equal to the numerical argmin."""
        return (
            self.curvature > 0
            and self.residual <= NEWTON_TOLERANCE * self.curvature
            and self.agreement <= ARGMIN_TOLERANCE + self.resolution
        )


def law_at(law: Callable[[Design], Any], fixed: Variables, variables: Variables) -> Any:
    """Return a law's output at ``Design(**fixed, **variables)``."""
    return law(Design(**fixed, **variables))


def in_float64(build: Callable[..., Claim]) -> Callable[..., Claim]:
    """Decorate a function that computes a claim with JAX: it runs in float64 and returns plain numbers.

    Inside a trace, as in a ``jax.vmap`` over resampled laws, the function runs unchanged, in the trace's precision.
    """

    @functools.wraps(build)
    def exact(*args: Any, **kwargs: Any) -> Claim:
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return build(*args, **kwargs)
        with float64():
            args, kwargs = jax.tree.map(_float64, (args, kwargs))
            claim = build(*args, **kwargs)
            value, objective, held = jax.tree.map(float, (dict(claim.value), claim.objective, claim.held))
            return dataclasses.replace(claim, value=value, objective=objective, held=held)

    return exact


def check(claim: Claim, *, away: float = 0.5) -> Checked:
    """Check a claim against its objective.

    Two numerical searches start ``away`` e-folds from the claimed value, on either side of it along the constraint.

    Raises:
      ValueError: a held quantity is not a product of powers, so that the search left the constraint.
    """
    with float64():
        value, objective, held = jax.tree.map(
            _float64, (dict(claim.value), _pytree(claim.objective), _pytree(claim.held))
        )
        at_value = _examine(objective, held, value)
        numeric = _argmin(objective, value, at_value, away)
        drift = jax.tree.map(lambda a, b: float(abs(a / b - 1)), held(numeric), at_value["held"])
        if max(drift.values(), default=0.0) > 1e-9:
            raise ValueError(
                f"The claim '{claim.statement}' holds {sorted(drift)} fixed, which is not a product of powers of "
                f"{sorted(value)}; substitute the constraint into the objective instead."
            )
        curvature, least = float(at_value["curvature"]), float(at_value["objective"])
        return Checked(
            value={**jax.tree.map(float, value), claim.objective_name: least},
            residual=float(at_value["residual"]),
            curvature=curvature,
            numeric={**jax.tree.map(float, numeric), claim.objective_name: float(objective(numeric))},
            agreement=_apart(numeric, value),
            resolution=4 * math.sqrt(np.finfo(np.float64).eps * abs(least) / curvature) if curvature > 0 else 0.0,
            held=jax.tree.map(float, dict(at_value["held"])),
        )


def _float64(x: Scalar) -> jax.Array:
    return jnp.asarray(x, jnp.float64)


def _pytree(function: Callable[..., Any]) -> Partial:
    return function if isinstance(function, Partial) else Partial(function)


@jax.jit
def _examine(objective: Partial, held: Partial, value: Variables) -> dict[str, Any]:
    logs, unravel = ravel_pytree(jax.tree.map(jnp.log, value))

    def loss(z: jax.Array) -> jax.Array:
        return objective(jax.tree.map(jnp.exp, unravel(z)))

    def constraint(z: jax.Array) -> jax.Array:
        return jnp.log(ravel_pytree(held(jax.tree.map(jnp.exp, unravel(z))))[0])

    normals = jax.jacobian(constraint)(logs).reshape(-1, logs.size)
    _, _, directions = jnp.linalg.svd(normals, full_matrices=True)
    tangent = directions[normals.shape[0] :].T
    return {
        "objective": loss(logs),
        "held": held(value),
        "tangent": tangent,
        "residual": jnp.linalg.norm(tangent.T @ jax.grad(loss)(logs)),
        "curvature": jnp.linalg.eigvalsh(tangent.T @ jax.hessian(loss)(logs) @ tangent)[0],
    }


def _argmin(objective: Partial, value: Variables, at_value: Mapping[str, Any], away: float) -> dict[str, jax.Array]:
    from scipy.optimize import minimize

    tangent = at_value["tangent"]
    start = jnp.full(tangent.shape[1], away)
    rise = jnp.abs(objective(_move(value, tangent, start)) - at_value["objective"])

    def scaled(steps: np.ndarray) -> tuple[float, np.ndarray]:
        risen, slope = _rise_and_slope(jnp.asarray(steps), objective, value, tangent, at_value["objective"])
        return float(risen / rise), np.asarray(slope / rise)

    # SciPy's search is independent of the derivation and of the fits, and compiles nothing. Rounding may stop its line
    # search, depending on the processor; the search then restarts from there.
    def search(steps: np.ndarray) -> np.ndarray:
        for _ in range(RESTARTS):
            ended = minimize(scaled, steps, jac=True, method="BFGS", tol=1e-12)
            steps = ended.x
            if ended.success:
                break
        return steps

    ends = [search(side * np.asarray(start)) for side in (1, -1)]
    return max((_move(value, tangent, jnp.asarray(end)) for end in ends), key=lambda point: _apart(point, value))


@jax.jit
def _rise_and_slope(
    steps: jax.Array, objective: Partial, value: Variables, tangent: jax.Array, offset: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(lambda s: objective(_move(value, tangent, s)) - offset)(steps)


def _move(value: Variables, tangent: jax.Array, steps: jax.Array) -> dict[str, jax.Array]:
    logs, unravel = ravel_pytree(jax.tree.map(jnp.log, dict(value)))
    return jax.tree.map(jnp.exp, unravel(logs + tangent @ steps))


def _apart(one: Variables, other: Variables) -> float:
    return max(float(abs(one[name] / other[name] - 1)) for name in other)
