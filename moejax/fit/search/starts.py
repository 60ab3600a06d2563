"""Generate initial guesses for a fit, scaled to the data or taken from papers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.search.objective import FitObjective
from moejax.fit.search.objective import points_of as coordinates_of
from moejax.float64 import float64
from moejax.laws import called
from moejax.minimize import sobol
from moejax.wording import argument

Points = Float[np.ndarray, "starts free"]


@dataclass(frozen=True)
class Sobol:
    """Sobol points that fill a box around the plausible values of the coefficients in centered units.

    Exponents, and scales of terms in units of the typical loss (``FitObjective``), are between 0.02 and 2 in absolute
    value. Coefficients that may be negative are between -2 and 2. Other coefficients, such as the number of experts at
    which a benefit ends, are between 0.02 and 300.
    """

    count: int = 2048
    seed: int = 0

    def __call__(self, objective: FitObjective, data: Mapping[str, Any]) -> Points:
        boxes = np.log([_box(objective, name) for name in objective.free])
        # Sobol points are balanced in sets of 2^n, so take the first points of the next larger set.
        powers = math.ceil(math.log2(self.count))
        cube = sobol(len(boxes), 2**powers, self.seed)[: self.count]
        logs = boxes[:, 0] + (boxes[:, 1] - boxes[:, 0]) * cube
        return np.where(objective.logarithmic, logs, np.exp(boxes[:, 1]) * (2 * cube - 1))


def _box(objective: FitObjective, name: str) -> tuple[float, float]:
    """Return the smallest and largest absolute value of a coefficient among the initial guesses."""
    fields = {f.name: f for f in dataclasses.fields(objective.law)}
    powers = [p for f in fields.values() for p in (*f.metadata["dimension"].values(), *f.metadata["shift"].values())]
    exponents = {p.lstrip("-") for power in powers for p in ((power,) if isinstance(power, str) else power)}
    of_known_size = fields[name].metadata["dimension"] or fields[name].metadata["is_scale"]
    exponent = name in exponents or fields[name].metadata["is_exponent"]
    ordinary = of_known_size or exponent or objective.signs[name] == "any"
    return (0.02, 2.0) if ordinary else (0.02, 300.0)


def middle_and_spread(
    objective: FitObjective,
) -> tuple[Float[np.ndarray, " free"], Float[np.ndarray, " free"]]:
    """Return the mean and standard deviation of a normal prior over the coordinates.

    The box of ``Sobol`` spans one standard deviation on each side of the mean. For an exponent or the scale of a term,
    one standard deviation is a factor of 10.
    """
    ends = np.log([_box(objective, name) for name in objective.free])
    ends = np.where(objective.logarithmic[:, None], ends, np.exp(ends[:, 1:]) * [-1, 1])
    return ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2


@dataclass(frozen=True)
class Grid:
    """All combinations of each coefficient's ``values``, in the law's own parameterization.

    A coefficient with a logarithmic coordinate starts at ``SMALLEST`` of its unit or above, because the objective is
    flat below.
    """

    values: Mapping[str, Sequence[float | int]]

    def __call__(self, objective: FitObjective, data: Mapping[str, Any]) -> Points:
        if missing := [name for name in objective.free if name not in self.values]:
            raise UserError(
                f"The grid of initial guesses has no values for {', '.join(missing)} of {called(objective.law)}; add "
                f"values, fix these coefficients, or choose other initial guesses ({argument('starts')})."
            )
        axes = np.meshgrid(*(np.asarray(self.values[name], np.float64) for name in objective.free), indexing="ij")
        combinations = np.stack([axis.ravel() for axis in axes], axis=1)
        fixed = {name: np.full(len(combinations), value) for name, value in data["fixed"].items()}
        law = objective.law(**{name: combinations[:, i] for i, name in enumerate(objective.free)}, **fixed)
        points = points_of(objective, data, law)
        return np.where(objective.logarithmic, np.maximum(points, np.log(SMALLEST)), points)


@dataclass(frozen=True)
class WarmStart:
    """Initial guesses at the coefficients of ``laws``, in the laws' own parameterization."""

    laws: tuple[Any, ...]

    def __call__(self, objective: FitObjective, data: Mapping[str, Any]) -> Points:
        stacked = jax.tree.map(lambda *leaves: np.array(leaves, np.float64), *self.laws)
        return points_of(objective, data, stacked)


Starts = Sobol | Grid | WarmStart


def _e_to(powers: Sequence[float | int]) -> tuple[float, ...]:
    return tuple(float(np.exp(power)) for power in powers)


HOFFMANN_GRID = Grid(
    {
        "irreducible": _e_to((-1, -0.5, 0, 0.5, 1)),
        "params_scale": _e_to((0, 5, 10, 15, 20, 25)),
        "params_exponent": (0, 0.5, 1, 1.5, 2),
        "tokens_scale": _e_to((0, 5, 10, 15, 20, 25)),
        "tokens_exponent": (0, 0.5, 1, 1.5, 2),
    }
)
"""Grid of 4,500 initial guesses of Hoffmann et al. (2022), Appendix D.3, for ``laws.chinchilla``."""
ABNAR_GRID = Grid(
    {
        "params_scale": _e_to((0, 10, 20)),
        "params_exponent": (0, 0.25, 0.5, 0.75, 1, 1.25),
        "tokens_scale": _e_to((0, 10, 20)),
        "tokens_exponent": (0, 0.25, 0.5, 0.75, 1, 1.25),
        "sparsity_scale": _e_to((0, 10, 20)),
        "sparsity_exponent": (-1, -0.5, 0, 0.5, 1),
        "coupling_scale": _e_to((0, 10, 20)),
        "coupling_exponent": (-1, -0.5, 0, 0.5, 1),
        "coupling_params_exponent": (0, 0.25, 0.5, 0.75, 1, 1.25),
        "irreducible": _e_to((1.5,)),
    }
)
"""Grid of 437,400 initial guesses of Abnar et al. (2025), Table 2, for ``laws.sparsity``."""


GRIDS: dict[str, Grid] = {"hoffmann": HOFFMANN_GRID, "abnar": ABNAR_GRID}
"""Published grids of initial guesses, keyed by the paper's first author."""

SMALLEST = 1e-2
"""Value, in the coefficient's unit, that replaces an initial guess of 0 in a logarithmic coordinate."""
OUTERMOST = 30.0
"""Bound to which more distant initial guesses are moved, because the objective is flat farther out."""


def points_of(objective: FitObjective, data: Mapping[str, Any], stacked: Any) -> Points:
    """Return the coordinates of a stack of laws as initial guesses."""
    with float64():
        points = np.asarray(coordinates_of(objective, stacked, data))
    zero = np.stack([np.asarray(getattr(stacked, name)) == 0 for name in objective.free], axis=1)
    reachable = np.where(zero, np.log(SMALLEST), np.clip(points, -OUTERMOST, OUTERMOST))
    return np.where(objective.logarithmic, reachable, points)
