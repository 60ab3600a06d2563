"""Represent the uncertainty of a fit, as its file stores it: covariance of the coefficients, ranges, dropped rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from moejax.config import build, convert
from moejax.errors import UserError
from moejax.fit.uncertainty.extrapolation import RATIOS
from moejax.fit.uncertainty.intervals import Spread, keeps_sign, satterthwaite
from moejax.fit.uncertainty.undetermined import Probes
from moejax.float64 import float64
from moejax.interval import Interval, interval
from moejax.json_text import fields, finite
from moejax.laws.curves.schedule_sums import REACH
from moejax.laws.design import FIELDS, KINDS
from moejax.laws.law import coefficients, in_units

COVARIANCES = {
    "sandwich": "CR2 sandwich (Bell and McCaffrey 2002), right for runs that are alike within a group",
    "gauss_newton": "Gauss-Newton, right if residuals are independent and alike",
}
"""Descriptions of the covariances by name. The sandwich treats the runs of a group as one draw."""

LARGEST_FOLDS = 50.0
"""Limit on the e-folds of a drawn coefficient from its fitted value, to avoid float overflow."""
MOST_LINEAR = 2.0
"""Largest relative standard error of a coefficient that is drawn linearly."""
MOST_ROUNDS = 64
"""Maximum number of rounds of ``count`` draws before fewer draws are returned."""


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """The covariance of a fit's coefficients, with the ranges of its runs and the dropped rows."""

    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest value among the fitted runs, of FLOPs, every input of the law, and their ratios."""
    covariance: str
    """Method of the covariance, from ``COVARIANCES``."""
    by: str
    """Unit of one independent draw: ``group`` or ``run``."""
    degrees_of_freedom: int
    """Degrees of freedom of Student's t without leverages: runs minus fitted coefficients, at least 1."""
    axes: tuple[Mapping[str, float], ...]
    """Independent error directions: the relative change of every fitted coefficient along each.

    Empty if the runs give no covariance.
    """
    deviations: tuple[float, ...]
    """Standard deviation along each axis."""
    leverages: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """Leverage of every draw along the axes (``intervals.Leverages``).

    Empty if the unit of a draw does not matter to the covariance.
    """
    draw_count: int = 0
    """Number of draws with positive weight; 0 if the unit of a draw does not matter."""
    why_none: str = ""
    """Reason why there is no covariance, as part of a sentence; empty if there is one, and in older files."""
    warnings: tuple[str, ...] = ()
    """Sentences about too few draws, and about coefficients that depend on a single draw."""
    dropped: tuple[str, ...] = ()
    """Rows of the table that were left out, with reasons."""

    def spread(self, law: Any, functional: Callable[[Any], Any]) -> Spread:
        """Return the standard errors of a flattened functional by the delta method; NaN without a covariance."""
        middle, contrasts = self._along_axes(law, lambda one: ravel_pytree(functional(one))[0])
        if not self.axes:
            nothing = Spread(
                middle=middle, errors=np.full(len(middle), np.nan), degrees_of_freedom=np.ones(len(middle))
            )
            return nothing.without([self.why_none] * len(middle))
        errors = np.linalg.norm(contrasts * np.asarray(self.deviations), axis=1)
        return Spread(middle=middle, errors=errors, degrees_of_freedom=self._degrees_of_freedom(contrasts))

    def _along_axes(
        self, law: Any, numbers: Callable[[Any], Any]
    ) -> tuple[Float[np.ndarray, " answers"], Float[np.ndarray, "answers axes"]]:
        """Return some numbers of a law, and their changes per unit of each axis, to first order."""
        with float64():
            exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), law)
            if not self.axes:
                middle = np.asarray(numbers(exact))
                return middle, np.zeros((len(middle), 0))
            steps = {
                name: np.asarray([axis.get(name, 0.0) for axis in self.axes]) * value
                for name, value in coefficients(exact).items()
            }
            moved = jax.vmap(lambda step: jax.jvp(numbers, (exact,), (step,)), out_axes=(None, 1))
            middle, contrasts = moved(dataclasses.replace(exact, **steps))
        return np.asarray(middle), np.asarray(contrasts)

    def _degrees_of_freedom(self, contrasts: Float[np.ndarray, "answers axes"]) -> Float[np.ndarray, " answers"]:
        if not self.leverages:
            return np.full(len(contrasts), float(self.degrees_of_freedom))
        return satterthwaite([np.reshape(rows, (-1, len(self.axes))) for rows in self.leverages], contrasts)

    def draws(self, law: Any, count: int, seed: int = 0) -> Drawn:
        """Draw laws from the covariance.

        Coefficients are drawn in units of the middle of the fitted ranges, in which a law is nearly linear in its
        coefficients, so that errors of several that cancel in the fitted runs cancel in every draw. Laws in which a
        coefficient would change its sign are left out. One whose standard error exceeds ``MOST_LINEAR`` of its size is
        drawn in the logarithm of its size.

        Raises:
          UserError: the fit has no covariance.
        """
        if not self.axes:
            why = self.why_none or "its runs are too few to give one"
            raise UserError(f"The fit holds no covariance to draw from: {why}.")
        random, deviations = np.random.default_rng(seed), np.asarray(self.deviations)
        units, signed = self._units(law), keeps_sign(law)
        values, tangents = self._along_axes(law, lambda one: jnp.stack([*coefficients(in_units(one, units)).values()]))
        moved = dict(zip(coefficients(law), tangents / np.where(values, values, 1.0)[:, None], strict=True))
        errors = {name: float(np.linalg.norm(along * deviations)) for name, along in moved.items()}
        # One that was fitted as nearly 0 has an error without a scale of its own, and is drawn linearly too.
        by_logarithm = {name for name, sign in signed.items() if sign and MOST_LINEAR < errors[name] <= LARGEST_FOLDS}
        kept_signs = [name for name, sign in signed.items() if sign and name not in by_logarithm]
        drawn = np.zeros((0, len(self.axes)))
        for _ in range(MOST_ROUNDS):
            more = random.standard_normal((count, len(self.axes))) * deviations
            kept = np.all([more @ moved[name] > -1 for name in kept_signs], axis=0) if kept_signs else slice(None)
            drawn = np.concatenate([drawn, more[kept]])[:count]
            if len(drawn) == count:
                break
        folds = {name: drawn @ along for name, along in moved.items()}
        shares = {
            name: np.exp(np.clip(fold, -LARGEST_FOLDS, LARGEST_FOLDS)) if name in by_logarithm else 1 + fold
            for name, fold in folds.items()
        }
        with float64():
            centred = dataclasses.replace(
                law, **{name: value * shares[name] for name, value in zip(moved, values, strict=True)}
            )
            back = {kind: 1.0 / unit for kind, unit in units.items()}
            laws = jax.tree.map(np.asarray, jax.vmap(lambda one: in_units(one, back))(centred))
        return Drawn(laws=laws, steps=drawn, uncertainty=self)

    def _units(self, law: Any) -> dict[str, float]:
        """Return the geometric middle of the fitted ranges of what a law reads, by kind of unit."""
        kinds = KINDS | {name: (name,) for name in self.ranges if name not in FIELDS}
        middles = {
            kind: [
                0.5 * np.log(low * high)
                for low, high in (self.ranges[n] for n in names if n in law.inputs and n in self.ranges)
                if low > 0
            ]
            for kind, names in kinds.items()
        }
        return {kind: float(np.exp(np.mean(logs))) for kind, logs in middles.items() if logs}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return finite(fields(self))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Laws drawn with the uncertainty of a fit: steps are normal, and each interval has its own Student's t."""

    laws: Any
    """One law whose coefficients have an entry per draw."""
    steps: Float[np.ndarray, "draws axes"]
    """Step of each draw along the axes of the covariance."""
    uncertainty: Uncertainty
    probes: Probes | None = None
    """Laws that probe directions which the runs do not determine; None if they determine everything."""

    def interval_of(self, answers: Any, level: float = 0.9) -> Interval:
        """Return the interval of a positive answer from its value under every law; NaN if it is not finite.

        A regression of the answer's logarithm on the steps gives its degrees of freedom. The distance of the bounds
        from the median is scaled by the ratio of Student's t to the normal quantile.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        normal = interval(answers, level)
        answers = np.asarray(answers, np.float64).ravel()
        known = np.isfinite(answers)
        if np.sum(known) <= len(self.uncertainty.axes) or np.any(answers[known] <= 0):
            return normal
        centred = self.steps[known] - self.steps[known].mean(axis=0)
        contrast = np.linalg.lstsq(centred, np.log(answers[known]), rcond=None)[0]
        upper = (1 + level) / 2
        degrees_of_freedom = self.uncertainty._degrees_of_freedom(contrast[None])[0]
        wider = scipy.special.stdtrit(degrees_of_freedom, upper) / scipy.special.ndtri(upper)
        low, high = (normal.middle * float((end / normal.middle) ** wider) for end in (normal.low, normal.high))
        return dataclasses.replace(normal, low=low, high=high)


def from_json(plain: Any, inputs: Iterable[str] = FIELDS) -> Uncertainty:
    """Return the inverse of ``Uncertainty.to_json``; ``inputs`` are the inputs of the law.

    Raises:
      UserError: an entry is missing or of another type.
    """
    stored = build(Uncertainty, convert(dict, plain, "uncertainty"), "uncertainty")
    for name, (low, high) in stored.ranges.items():
        if name not in {*FIELDS, *inputs, *RATIOS, *REACH} or not 0 <= low <= high or not 0 < high < np.inf:
            raise UserError(
                f"uncertainty.ranges has {name!r} from {low:g} to {high:g}; a range is that of a field or ratio that "
                f"this version of moejax knows, and goes from at least 0 to a number above 0: fit again."
            )
    lengths = {len(stored.deviations), *(len(row) for rows in stored.leverages for row in rows)}
    if lengths != {len(stored.axes)}:
        raise UserError(f"uncertainty has {len(stored.axes)} axes, and deviations or leverages of another number.")
    return stored
