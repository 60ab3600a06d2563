"""Represent the uncertainty of a fit, and compute intervals: standard errors, degrees of freedom, prediction ranges.

The degrees of freedom measure how many draws (groups of runs, or runs) determine one number's standard error. A table
may have forty groups of which only one varies the quantity that a coefficient describes. That coefficient's error
depends on one draw, and Student's t must account for this. Satterthwaite's degrees of freedom match a chi-squared
variable to the mean and variance of the variance estimate, for independent and identically distributed residuals (Bell
and McCaffrey 2002).

Intervals are linear for numbers of any sign, logarithmic for numbers that keep their sign, and in log odds for shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float

from moejax.config import build, convert
from moejax.errors import UserError
from moejax.fit.uncertainty.extrapolation import RATIOS
from moejax.fit.uncertainty.undetermined import Probes
from moejax.float64 import float64
from moejax.interval import Interval, check_level, interval
from moejax.json_text import fields, finite
from moejax.laws.curves.schedule_sums import REACH
from moejax.laws.design import FIELDS, KINDS
from moejax.laws.law import Law, coefficients, in_units

Numbers = Float[np.ndarray, " answers"]


def keeps_sign(law: Law | type) -> dict[str, bool]:
    """Return whether each coefficient of a law keeps its sign, by name; one declared ``any`` may be 0.

    Args:
      law: a law or its class.
    """
    return {f.name: f.metadata["sign"] != "any" for f in dataclasses.fields(law) if not f.metadata.get("static")}


def ends(middle: Numbers, reach: Numbers, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
    """Return both ends of the intervals of some numbers.

    The interval of a number that keeps its sign is symmetric in the logarithm of its absolute value. A law is more
    nearly linear in it, and the interval keeps the sign. Any other interval is symmetric on the linear scale and may
    contain 0.

    Args:
      middle: the numbers.
      reach: standard errors times Student's t.
      one_sign: True for each number that keeps its sign.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.exp(reach / np.abs(middle))
        folded = np.sort(np.stack([middle / factor, middle * factor]), axis=0)
    linear = np.stack([middle - reach, middle + reach])
    low, high = np.where(np.asarray(one_sign) & (middle != 0), folded, linear)
    return low, high


def share_ends(middle: Numbers, reach: Numbers) -> tuple[Numbers, Numbers]:
    """Return both ends of the intervals of shares between 0 and 1, symmetric in the log odds."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds_ends = ends(middle / (1 - middle), reach / (1 - middle) ** 2, True)
        low, high = (1 / (1 + 1 / odds) for odds in odds_ends)
    return low, high


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The uncertainty of some estimated numbers."""

    middle: Numbers
    errors: Numbers
    """Standard errors; NaN where unknown."""
    degrees_of_freedom: Numbers
    """Degrees of freedom of Student's t for each number."""
    unknown: tuple[str, ...] = ()
    """Reason why each number has no error (``FitResult.unknown``), empty if it has one; no entries if all have one."""

    def without(self, unknown: Sequence[str]) -> Spread:
        """Return a copy without the errors of numbers for which a reason is given, in addition to earlier ones."""
        reasons = tuple(why or before for why, before in zip(unknown, self.unknown or unknown, strict=True))
        errors = np.where([bool(why) for why in reasons], np.nan, self.errors)
        return dataclasses.replace(self, errors=errors, unknown=reasons)

    def ends(self, level: float, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
        """Return both ends of each number's interval.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return ends(self.middle, self._reach(level), one_sign)

    def share_ends(self, level: float) -> tuple[Numbers, Numbers]:
        """Return both ends of each share's interval, which stay between 0 and 1.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return share_ends(self.middle, self._reach(level))

    def _reach(self, level: float) -> Numbers:
        return scipy.special.stdtrit(self.degrees_of_freedom, (1 + check_level(level)) / 2) * self.errors


@dataclass(frozen=True, kw_only=True)
class PredictionIntervals:
    """Prediction ranges for new runs, with one entry per run."""

    low: Float[np.ndarray, " designs"]
    loss: Float[np.ndarray, " designs"]
    high: Float[np.ndarray, " designs"]
    from_coefficients: float
    """Share of the variance due to the coefficients, over all designs with a range; the rest is lack of fit. NaN
    without any range."""
    unknown: tuple[str, ...]
    """Reason why each run has no range (``FitResult.unknown``); empty if it has one."""


Leverages = Sequence[Float[np.ndarray, "_ axes"]]
"""Per draw, its orthogonal directions along axes that are orthonormal over the runs. The length of each direction is
the square root of the draw's leverage in it."""
Contrasts = Float[np.ndarray, "answers axes"]
"""Change of each number per unit of each axis."""

WHOLE = 3e-6
"""Distance from 1 below which a leverage counts as 1: the draw alone determines the direction and has no residual
there.

Stored leverages may be rounded to six digits, so a leverage of 1 may be this much smaller.
"""


def stretch(sizes: Float[np.ndarray, " rank"]) -> Float[np.ndarray, " rank"]:
    """Return (1 - leverage)^(-1/2), the CR2 factor for a draw's residuals; 0 in directions without residuals.

    Args:
      sizes: square roots of leverages.
    """
    remaining = 1 - sizes**2
    return np.where(remaining > WHOLE, 1 / np.sqrt(np.maximum(remaining, WHOLE)), 0.0)


def satterthwaite(leverages: Leverages, contrasts: Contrasts) -> Float[np.ndarray, " answers"]:
    """Return (tr P)² / |P|², with P the covariance of all parts of a number's variance; 1 if no residual informs it.

    A draw's part of the number's variance is the square of a·e, with e its residuals and a the CR2-adjusted contrast
    within the draw. With u the part of a that the fit absorbs, P = diag(|a|²) - u·uᵀ. In directions that one draw alone
    determines, the variance is taken as the mean over all others. That mean is a sum of such parts too, with its own
    degrees of freedom.
    """
    axes = contrasts.shape[1]
    # The ratio does not depend on a contrast's length; normalising avoids overflow of squares.
    length = np.max(np.abs(contrasts), axis=1, initial=0.0, keepdims=True)
    measured = np.isfinite(length) & (length > 0)
    contrasts = np.where(measured, contrasts, 0.0) / np.where(measured, length, 1.0)
    lost = alone(leverages, axes)
    others = axes - np.trace(lost)
    if others <= WHOLE:
        return np.ones(len(contrasts))
    # Accumulate |P|² of the contrast, of the mean over the others, and of their product.
    own, both, mean = np.zeros(len(contrasts)), np.zeros(len(contrasts)), 0.0
    back, back_mean = np.zeros((len(contrasts), axes, axes)), np.zeros((axes, axes))
    for rows in leverages:
        wide = stretch(np.linalg.norm(rows, axis=1))[:, None] * rows
        within, taken = wide.T @ wide, wide.T @ rows
        square, u = np.sum((contrasts @ wide.T) ** 2, axis=1), contrasts @ taken
        own += square**2 - 2 * square * np.sum(u**2, axis=1)
        both += np.sum((contrasts @ within) * (contrasts @ (within - 2 * taken @ taken)), axis=1)
        mean += np.sum(within * (within - 2 * taken @ taken))
        back += u[:, :, None] * u[:, None, :]
        back_mean += taken @ taken
    own += np.sum(back**2, axis=(1, 2))
    both += np.sum(back * back_mean, axis=(1, 2))
    mean += np.sum(back_mean**2)
    share = np.einsum("af,fg,ag->a", contrasts, lost, contrasts) / others
    size = own + 2 * share * both + share**2 * mean
    # CR2 is unbiased, so tr P is the squared contrast.
    trace = np.sum(contrasts**2, axis=1)
    known = (trace > 0) & (size > 0)
    return np.where(known, np.maximum(trace**2 / np.where(known, size, 1.0), 1.0), 1.0)


def parts(leverages: Leverages, contrasts: Contrasts) -> Float[np.ndarray, "answers draws"]:
    """Return each draw's contribution to the variance of each number, for independent residuals of variance 1."""
    return np.stack([np.sum((contrasts @ rows.T) ** 2, axis=1) for rows in leverages], axis=1)


def set_alone(leverages: Leverages) -> list[Float[np.ndarray, "_ axes"]]:
    """Return the directions that each draw alone determines, where it has no residuals."""
    return [rows[stretch(np.linalg.norm(rows, axis=1)) == 0] for rows in leverages]


def alone(leverages: Leverages, axes: int) -> Float[np.ndarray, "axes axes"]:
    """Return the projection onto the directions that a single draw determines."""
    # Their leverage is 1, so they have unit length.
    return sum((rows.T @ rows for rows in set_alone(leverages)), np.zeros((axes, axes)))


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
    """Leverage of every draw along the axes (``Leverages``).

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

    def spread(self, law: Law, functional: Callable[[Any], Any]) -> Spread:
        """Return the standard errors of a flattened functional by the delta method; NaN without a covariance."""
        middle, contrasts = self._along_axes(law, lambda one: ravel_pytree(functional(one))[0])
        if not self.axes:
            nothing = Spread(
                middle=middle, errors=np.full(len(middle), np.nan), degrees_of_freedom=np.ones(len(middle))
            )
            return nothing.without([self.why_none] * len(middle))
        return Spread(
            middle=middle, errors=self._errors(contrasts), degrees_of_freedom=self._degrees_of_freedom(contrasts)
        )

    def _errors(self, contrasts: Float[np.ndarray, "answers axes"]) -> Float[np.ndarray, " answers"]:
        # Unlike a norm, hypot does not overflow where the square of a result would.
        return np.hypot.reduce(contrasts * np.asarray(self.deviations), axis=1)

    def _along_axes(
        self, law: Law, numbers: Callable[[Any], Any]
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

    def draws(self, law: Law, count: int, seed: int = 0) -> Drawn:
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
        tangents = tangents / np.where(values, values, 1.0)[:, None]
        moved = dict(zip(coefficients(law), tangents, strict=True))
        errors = dict(zip(moved, self._errors(tangents), strict=True))
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

    def _units(self, law: Law) -> dict[str, float]:
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
