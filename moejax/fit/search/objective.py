"""Express a law, runs and a penalty as an objective over unconstrained, centered coordinates.

Sizes are divided by their geometric means over the runs. The scale of a term is then its contribution to the loss at
the center of the table. A coefficient with a fixed sign is searched by its logarithm. In these coordinates the
condition number of Hoffmann's fit is a thousand times smaller than in the published coordinates.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.errors import UserError
from moejax.fit.runs import Runs
from moejax.float64 import float64
from moejax.laws import design as designs
from moejax.laws import law as laws
from moejax.wording import argument

Array = jax.Array | np.ndarray

RESIDUALS: dict[str, Callable[[Any, Any], Any]] = {
    "log": lambda predicted, observed: jnp.log(predicted) - jnp.log(observed),
    "nats": lambda predicted, observed: predicted - observed,
}
"""Kinds of residual: in log loss, where an error of 1 % counts the same at every loss, or in nats per token."""


@dataclass(frozen=True)
class Huber:
    """The Huber penalty: r²/2 up to ``delta``, delta·(|r| - delta/2) beyond. Hoffmann et al. (2022), Eq. 3.

    The objective is the **sum** over runs. A mean would be so small that a minimizer's default tolerance stops the
    search at its initial guess.
    """

    delta: float = 1e-3
    residual: str = "log"

    def __call__(self, predicted: Any, observed: Any) -> Any:
        return self.of_residual(RESIDUALS[self.residual](predicted, observed))

    def of_residual(self, residual: Any) -> Any:
        """Return the penalty of a residual in its unit."""
        size = jnp.abs(residual)
        return jnp.where(size < self.delta, 0.5 * size**2, self.delta * (size - 0.5 * self.delta))


@dataclass(frozen=True)
class Squared:
    """The squared residual r², so that the mean over runs is the mean squared error."""

    residual: str = "log"

    def __call__(self, predicted: Any, observed: Any) -> Any:
        return self.of_residual(RESIDUALS[self.residual](predicted, observed))

    def of_residual(self, residual: Any) -> Any:
        """Return the penalty of a residual in its unit."""
        return residual**2


Penalty = Huber | Squared
PENALTIES: dict[str, type[Penalty]] = {"huber": Huber, "squared": Squared}


def named_penalty(penalty: str = "huber", residual: str = "log", delta: float | None = None) -> Penalty:
    """Return a penalty, given by its name in ``PENALTIES`` and its residual's name in ``RESIDUALS``.

    Raises:
      UserError: a name is unknown, delta is not positive, or the penalty has no delta.
    """
    for given, known, option in ((penalty, PENALTIES, "penalty"), (residual, RESIDUALS, "residual")):
        if given not in known:
            raise UserError(f"{argument(option)} must be {' or '.join(known)}; got {given}.")
    if delta is not None and not delta > 0:
        raise UserError(f"{argument('delta')} must be above 0; got {delta}.")
    if delta is not None and PENALTIES[penalty] is not Huber:
        raise UserError(f"{argument('penalty', penalty)} has no {argument('delta')}; leave {argument('delta')} out.")
    return PENALTIES[penalty](residual=residual) if delta is None else Huber(delta=delta, residual=residual)


WIDEST = 12.0
"""Bound on the log of a coefficient in centered units, in e-folds, so that long line-search steps stay finite."""
WIDEST_SIZE = 2 * WIDEST
"""Bound for a coefficient that is a size, such as Kaplan's N_c, the parameters at which the loss would be 1.

A loss of 1 may be far outside the runs, and so may such a size.
"""


AT_AN_END = 2.0
"""Multiple of the bound beyond which a coordinate counts as at the bound: the log coefficient is within 4 % of it."""
NEAR_ZERO = 1e-4
"""Share of its unit below which a coefficient with a fixed sign counts as nearly 0."""
EDGE = 1 - 1e-12
"""Share of ``WIDEST`` up to which a coefficient keeps its precision."""


def _bounded(x: Any, widest: Any) -> Any:
    return widest * jnp.tanh(x / widest)


def _unbounded(y: Any, widest: Any) -> Any:
    return widest * jnp.arctanh(jnp.clip(y / widest, -EDGE, EDGE))


INWARD: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, widest: jnp.exp(_bounded(x, widest)),
    "-": lambda x, widest: -jnp.exp(_bounded(x, widest)),
    "any": lambda x, _: x,
}
"""Map from a coordinate and its bound in e-folds to the coefficient, by the sign of the coefficient."""
OUTWARD: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda c, widest: _unbounded(jnp.log(c), widest),
    "-": lambda c, widest: _unbounded(jnp.log(-c), widest),
    "any": lambda c, _: c,
}
"""Map from a coefficient to its coordinate, the inverse of ``INWARD``."""


@dataclass(frozen=True)
class FitObjective:
    """The part of a fit that does not depend on numbers: a law and a penalty. One compiled program serves all runs,
    weights and initial guesses.

    Call it as ``objective(point, data, weights)`` to compute the objective divided by ``data["scale"]``.
    """

    law: type
    penalty: Penalty
    fixed: tuple[str, ...] = ()
    output: str = "loss"
    """Measured output of the law."""
    plain: tuple[str, ...] = ()
    """Coefficients whose coordinate is their value, not its logarithm, because they are nearly 0."""

    @functools.cached_property
    def free(self) -> tuple[str, ...]:
        """Names of the coefficients that are searched, in order."""
        return tuple(name for name in self.signs if name not in (*self.fixed, *self.without_effect))

    @functools.cached_property
    def without_effect(self) -> tuple[str, ...]:
        """Names of coefficients without effect on the output; they are NaN in the fitted law unless fixed."""
        return laws.without_effect(self.law, self.output)

    @functools.cached_property
    def signs(self) -> dict[str, str]:
        """Sign of every coefficient, keyed by name; coefficients in ``plain`` may cross 0."""
        searched = (f for f in dataclasses.fields(self.law) if not f.metadata.get("static"))
        return {f.name: "any" if f.name in self.plain else f.metadata["sign"] for f in searched}

    @functools.cached_property
    def logarithmic(self) -> np.ndarray:
        """Mask of the logarithmic coordinates, whose coefficients have a fixed sign."""
        return np.array([self.signs[name] != "any" for name in self.free])

    def near_zero(self, points: Array) -> Any:
        """Return a mask of the coordinates (last axis) whose coefficients have a fixed sign and are nearly 0."""
        return self.logarithmic & (np.asarray(_bounded(points, self.widest)) < np.log(NEAR_ZERO))

    @functools.cached_property
    def widest(self) -> np.ndarray:
        """Bound on the absolute logarithm of each searched coefficient; unused for coefficients of any sign."""
        sizes = {
            f.name for f in dataclasses.fields(self.law) if any(map(laws.is_power, f.metadata["dimension"].values()))
        }
        return np.array([WIDEST_SIZE if name in sizes else WIDEST for name in self.free])

    def at_an_end(self, points: Array) -> Any:
        """Return a mask of the coordinates (last axis) at a bound of the search, where the objective is flat."""
        return self.logarithmic & (np.abs(points) > AT_AN_END * self.widest)

    @functools.cached_property
    def _scales(self) -> frozenset[str]:
        return frozenset(f.name for f in dataclasses.fields(self.law) if f.metadata["is_scale"])

    def _size(self, name: str, data: Mapping[str, Any]) -> Any:
        """Return the unit in which a coefficient is searched: the typical output for the scale of a term, else 1."""
        return data["typical"] if name in self._scales else 1.0

    def centered(self, point: Array, data: Mapping[str, Any]) -> Any:
        """Return the law at a point, for designs measured in the data's units."""
        free = {
            name: INWARD[self.signs[name]](point[i], self.widest[i]) * self._size(name, data)
            for i, name in enumerate(self.free)
        }
        law = self.law(**dict.fromkeys(self.without_effect, jnp.nan) | free | data["fixed"])
        if not self.fixed:
            return law
        # Fixed values are in plain units, in which a fixed scale does not depend on the free exponents.
        return laws.in_units(dataclasses.replace(_plain(law, data), **data["fixed"]), data["units"])

    def law_at(self, point: Array, data: Mapping[str, Any]) -> Any:
        """Return the law at a point, in its own parameterization."""
        plain = _plain(self.centered(point, data), data)
        # A fixed coefficient of another output cannot be converted to units without the other coefficients of its term.
        given = {name: value for name, value in data["fixed"].items() if name in self.without_effect}
        return dataclasses.replace(plain, **given) if given else plain

    def point_of(self, law: laws.Law, data: Mapping[str, Any]) -> Any:
        """Convert a law's own parameters to search coordinates."""
        values = laws.coefficients(laws.in_units(law, data["units"]))
        sizes = [self._size(name, data) for name in self.free]
        signs = tuple(self.signs[name] for name in self.free)
        return _coordinates(signs, [values[name] for name in self.free], sizes, self.widest)

    def predicted(self, point: Array, data: Mapping[str, Any]) -> Any:
        """Return the law's prediction for every run at a point."""
        return outputs(self.centered(point, data), data["design"], self.output)

    def penalties(self, point: Array, data: Mapping[str, Any]) -> Any:
        """Return the penalty of every run at a point."""
        return self.penalty(self.predicted(point, data), data["loss"])

    def __call__(self, point: Array, data: Mapping[str, Any], weights: Array) -> Any:
        # A run of weight 0 is held out. Its prediction may have no logarithm, and must not make the objective NaN.
        kept = weights > 0
        predicted = jnp.where(kept, self.predicted(point, data), data["typical"])
        penalties = self.penalty(predicted, jnp.where(kept, data["loss"], data["typical"]))
        return jnp.sum(weights * penalties) / data["scale"]


@functools.partial(jax.jit, static_argnums=0)
def _coordinates(
    signs: tuple[str, ...], values: Sequence[jax.Array], sizes: Sequence[jax.Array], widest: jax.Array
) -> Any:
    """Return the coordinates of coefficients with these signs, each divided by its size."""
    each = zip(signs, values, sizes, widest, strict=True)
    return jnp.stack([OUTWARD[sign](jnp.asarray(value, float) / size, most) for sign, value, size, most in each])


@functools.partial(jax.jit, static_argnums=0)
def penalties_of(penalty: Penalty, predicted: jax.Array, observed: jax.Array) -> Any:
    """Return ``penalty(predicted, observed)``, compiled as one program."""
    return penalty(predicted, observed)


@jax.jit
def _asked(law: laws.Law, design: designs.Design) -> Any:
    return jax.vmap(law)(design)


@functools.partial(jax.jit, static_argnums=0)
def law_at(objective: FitObjective, point: jax.Array, data: Mapping[str, Any]) -> Any:
    """Return ``objective.law_at``, compiled once for equal objectives and shapes."""
    return objective.law_at(point, data)


@functools.partial(jax.jit, static_argnums=0)
def laws_at(objective: FitObjective, points: jax.Array, data: Mapping[str, Any]) -> Any:
    """Return the laws at many points as one law with array leaves; fixed coefficients are the same in all."""
    stacked = jax.vmap(lambda point: objective.law_at(point, data))(points)
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(points),)), stacked)


@functools.partial(jax.jit, static_argnums=0)
def points_of(objective: FitObjective, stacked: Any, data: Mapping[str, Any]) -> Any:
    """Return the coordinates of a law with array leaves."""
    return jax.vmap(lambda law: objective.point_of(law, data))(stacked)


@functools.partial(jax.jit, static_argnums=(0, 1))
def slopes_of_residuals(
    objective: FitObjective, residual: str, point: jax.Array, data: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Return every run's residual at a point (``residual``: a key of ``RESIDUALS``), and its coordinate derivatives."""

    def residuals(at: jax.Array) -> Any:
        return RESIDUALS[residual](objective.predicted(at, data), data["loss"])

    return residuals(point), jax.jacfwd(residuals)(point)


def outputs(law: laws.Law, design: designs.Design, output: str) -> Any:
    """Return one output of a law for a design of arrays."""
    predicted = jax.vmap(law)(design)
    return predicted[output] if isinstance(predicted, dict) else predicted


compiled_outputs = jax.jit(outputs, static_argnums=2)
"""Compiled ``outputs``."""


def _plain(law: laws.Law, data: Mapping[str, Any]) -> Any:
    return laws.in_units(law, {kind: 1.0 / unit for kind, unit in data["units"].items()})


def units_of(law: type, runs: Runs) -> dict[str, float]:
    """Return the unit of each kind of size that a law reads, keyed by kind, from runs with positive weight.

    The unit is the geometric mean if the values are positive, else the root mean square.
    """
    kept = runs.weight > 0
    units = {}
    for kind, names in (designs.KINDS | {name: (name,) for name in runs.design.columns or {}}).items():
        read = [designs.value_of(runs.design, name)[kept] for name in names if name in law.inputs]
        if read and (kind in designs.KINDS or np.min(read[0], initial=np.inf) > 0):
            units[kind] = float(np.exp(np.mean(np.log(np.concatenate(read)))))
        elif read and (size := float(np.sqrt(np.mean(read[0] ** 2)))) > 0:
            units[kind] = size
    return units


def data_of(objective: FitObjective, runs: Runs, fixed: Mapping[str, float]) -> dict[str, Any]:
    """Return the float64 arrays that the compiled objective reads, keyed by name: inputs, losses, units and fixed
    coefficients."""
    # Columns without declared dimensions keep their plain units, which is slower to fit but equally exact.
    units = units_of(objective.law, runs)
    if not describes_its_dimensions(objective.law, runs, units):
        units = {k: u for k, u in units.items() if describes_its_dimensions(objective.law, runs, {k: u})}
    kept = runs.weight > 0
    typical = np.exp(np.average(np.log(runs.loss[kept]), weights=runs.weight[kept]))
    with float64():
        # Mean weighted penalty of a constant prediction; relative to it, the mean term of a fit is of order 1 or less.
        flat = np.asarray(penalties_of(objective.penalty, np.full(int(kept.sum()), typical), runs.loss[kept]))
    spread = float(np.average(flat, weights=runs.weight[kept]) * runs.weight[kept].mean())
    return {
        "design": designs.in_units(runs.design, units),
        "loss": runs.loss,
        "typical": np.float64(typical),
        "units": {kind: np.float64(unit) for kind, unit in units.items()},
        "fixed": {name: np.float64(fixed[name]) for name in objective.fixed},
        "scale": np.float64(spread if spread > 0 else 1.0),
    }


def describes_its_dimensions(law: type, runs: Runs, units: Mapping[str, float] | None = None) -> bool:
    """Return whether a change of units leaves a law's predictions unchanged; by default, a change to the units of the
    runs."""
    units = units_of(law, runs) if units is None else units
    runs = runs.where(np.arange(len(runs)) < 3)
    signs = {f.name: f.metadata["sign"] for f in dataclasses.fields(law) if not f.metadata.get("static")}
    # A term that overflows or dominates hides a wrong dimension, so the law is evaluated at several points.
    random, some = np.random.default_rng(0), [0.3 + 0.01 * np.arange(len(signs))]
    if "any" in signs.values():
        some += [10 ** random.uniform(-2, 0.5, len(signs)) * random.choice([-1, 1], len(signs)) for _ in range(24)]
    for sizes in some:
        values = {n: {"+": abs(x), "-": -abs(x)}.get(s, x) for (n, s), x in zip(signs.items(), sizes, strict=True)}
        one = law(**values)
        with float64():
            plain = _asked(laws.in_units(one, {kind: 1.0 / u for kind, u in units.items()}), runs.design)
            centered = _asked(one, designs.in_units(runs.design, units))
        for pair in zip(jax.tree.leaves(plain), jax.tree.leaves(centered), strict=True):
            # Indexing a JAX array would compile a program of its own.
            a, b = map(np.asarray, pair)
            finite = np.isfinite(a) & np.isfinite(b)
            if not np.allclose(a[finite], b[finite], rtol=1e-6):
                return False
    return True
