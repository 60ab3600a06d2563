"""Represent the uncertainty of a fit, and compute standard errors, degrees of freedom and intervals.

The degrees of freedom measure how many draws (groups of runs, or runs) determine a number's standard error. In a table
of forty groups, the quantity that a coefficient describes may vary in only one group. The coefficient's error then
depends on one draw, and Student's t must account for this. Satterthwaite's degrees of freedom match a chi-squared
variable to the mean and variance of the variance estimate, for independent and identically distributed residuals (Bell
and McCaffrey 2002).

Intervals are linear for numbers of any sign, logarithmic for numbers that keep their sign, and in log odds for shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
from moejax.interval import UNKNOWN, Interval, check_level, interval
from moejax.json_text import fields, finite
from moejax.laws.curves.schedule_sums import REACH
from moejax.laws.design import FIELDS, KINDS
from moejax.laws.law import Law, coefficients, in_units

Numbers = Float[np.ndarray, " answers"]


def keeps_sign(law: Law | type) -> dict[str, bool]:
    """Return whether each coefficient of a law has a fixed sign, keyed by name. A coefficient of sign ``any`` may be 0.

    Args:
      law: a law or its class.
    """
    return {f.name: f.metadata["sign"] != "any" for f in dataclasses.fields(law) if not f.metadata.get("static")}


def ends(middle: Numbers, reach: Numbers, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
    """Return both ends of intervals.

    The interval of a number with a fixed sign is symmetric in the logarithm of its absolute value, in which a law is
    more nearly linear. Any other interval is symmetric on the linear scale and may contain 0.

    Args:
      middle: the numbers.
      reach: standard errors times Student's t.
      one_sign: True for each number with a fixed sign.
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
    """Reason for each missing error (``FitResult.unknown``), else an empty string; no entries if none is missing."""

    def without(self, unknown: Sequence[str]) -> Spread:
        """Return a copy in which numbers with a reason in ``unknown`` have no error; earlier reasons are kept."""
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
        """Return both ends of each share's interval, which are between 0 and 1.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return share_ends(self.middle, self._reach(level))

    def _reach(self, level: float) -> Numbers:
        return scipy.special.stdtrit(self.degrees_of_freedom, (1 + check_level(level)) / 2) * self.errors


@dataclass(frozen=True, kw_only=True)
class PredictionIntervals:
    """Prediction intervals for new runs, with one entry per run."""

    low: Float[np.ndarray, " designs"]
    loss: Float[np.ndarray, " designs"]
    high: Float[np.ndarray, " designs"]
    from_coefficients: float
    """Share of the variance due to the coefficients, over all designs with an interval; the rest is lack of fit. NaN if
    no design has an interval."""
    unknown: tuple[str, ...]
    """Per run, the reason for a missing interval (``FitResult.unknown``), or an empty string."""


Leverages = Sequence[Float[np.ndarray, "_ axes"]]
"""Orthogonal directions of each draw, along axes that are orthonormal over the runs. The length of a direction is the
square root of the draw's leverage in this direction."""
Contrasts = Float[np.ndarray, "answers axes"]
"""Change of each number per unit of each axis."""

WHOLE = 3e-6
"""Distance from 1 below which a leverage counts as 1: only this draw determines the direction, so it has no residual in
this direction.

Leverages in files may be rounded to six digits, so a leverage of 1 may be stored with this error.
"""


def stretch(sizes: Float[np.ndarray, " rank"]) -> Float[np.ndarray, " rank"]:
    """Return (1 - leverage)^(-1/2), the CR2 factor for a draw's residuals; 0 in directions without residuals.

    Args:
      sizes: square roots of leverages.
    """
    remaining = 1 - sizes**2
    return np.where(remaining > WHOLE, 1 / np.sqrt(np.maximum(remaining, WHOLE)), 0.0)


def satterthwaite(leverages: Leverages, contrasts: Contrasts) -> Float[np.ndarray, " answers"]:
    """Return each number's degrees of freedom (tr P)² / |P|², with trace tr P and Frobenius norm |P|; 1 if no residual
    contributes.

    P is the covariance of the draws' parts of the number's variance. A draw's part is the square of a·e, where e are
    the draw's residuals and a is the CR2-adjusted contrast within the draw. With u the part of a that the fit absorbs,
    P = diag(|a|²) - u·uᵀ. In directions that only one draw determines, the variance is the mean over all other
    directions. This mean is also a sum of such parts, with its own degrees of freedom.
    """
    axes = contrasts.shape[1]
    # The ratio does not depend on a contrast's length; normalizing avoids overflow of squares.
    length = np.max(np.abs(contrasts), axis=1, initial=0.0, keepdims=True)
    measured = np.isfinite(length) & (length > 0)
    contrasts = np.where(measured, contrasts, 0.0) / np.where(measured, length, 1.0)
    lost = alone(leverages, axes)
    others = axes - np.trace(lost)
    if others <= WHOLE:
        return np.ones(len(contrasts))
    # Accumulate |P|² for the contrast, for the mean over the other directions, and for their product.
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
    """Return, per draw, the directions that only this draw determines and in which it has no residuals."""
    return [rows[stretch(np.linalg.norm(rows, axis=1)) == 0] for rows in leverages]


def alone(leverages: Leverages, axes: int) -> Float[np.ndarray, "axes axes"]:
    """Return the projection onto all directions that only one draw determines."""
    # These directions have a leverage of 1, and so unit length.
    return sum((rows.T @ rows for rows in set_alone(leverages)), np.zeros((axes, axes)))


COVARIANCES = {
    "sandwich": "CR2 sandwich (Bell and McCaffrey 2002), valid if residuals within a group are correlated",
    "gauss_newton": "Gauss-Newton, valid if residuals are independent and identically distributed",
}
"""Descriptions of the covariance methods by name. The sandwich treats the runs of a group as one draw."""

STANDARD = "from standard errors"
"""Method of an interval from a standard error and Student's t, as text that follows the level in a heading."""

LARGEST_FOLDS = 50.0
"""Maximum distance of a drawn coefficient from its fitted value, in e-folds, to avoid float overflow."""
MOST_LINEAR = 2.0
"""Largest relative standard error of a coefficient that is drawn linearly."""
STEP = 1e-3
"""Step along an axis, in standard deviations, for the finite differences that give standard errors."""
MOST_ROUNDS = 64
"""Maximum number of rounds of ``count`` draws before fewer draws are returned."""


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """The covariance of a fit's coefficients, the ranges of the fitted runs, and the dropped rows."""

    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest fitted value of FLOPs, of every law input, and of ratios of inputs."""
    covariance: str
    """Method of the covariance, from ``COVARIANCES``."""
    by: str
    """Unit of one independent draw: ``group`` or ``run``."""
    degrees_of_freedom: int
    """Degrees of freedom of Student's t if there are no leverages: runs minus fitted coefficients, at least 1."""
    axes: tuple[Mapping[str, float], ...]
    """Independent directions of error. Each holds the relative changes of the fitted coefficients, keyed by name.

    Empty if the runs give no covariance.
    """
    deviations: tuple[float, ...]
    """Standard deviation along each axis."""
    leverages: tuple[tuple[tuple[float, ...], ...], ...] = ()
    """Leverage of every draw along the axes (``Leverages``).

    Empty if the covariance does not depend on the unit of a draw.
    """
    draw_count: int = 0
    """Number of draws with positive weight; 0 if the covariance does not depend on the unit of a draw."""
    why_none: str = ""
    """Clause with the reason for a missing covariance; empty if the covariance exists."""
    few: str = ""
    """Clause stating that there are no more draws than coefficients, so standard errors are too small; else empty."""
    warnings: tuple[str, ...] = ()
    """Warnings about too few draws, and about coefficients that depend on a single draw."""
    dropped: tuple[str, ...] = ()
    """Rows of the table that were left out, with reasons."""
    flops_convention: str = ""
    """Convention of the fitted runs' FLOPs (``extrapolation.flops_convention``); empty if unknown."""

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
        """Return the values of ``numbers`` for a law, and their first-order changes per unit of each axis."""
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

    def draws(self, law: Law, count: int) -> Drawn:
        """Draw laws from the covariance, which must exist.

        Sizes are measured in units of the middle of the fitted ranges. In these units a law is nearly linear in its
        coefficients. Errors of coefficients that cancel in the fitted runs therefore also cancel in every draw. Laws in
        which a coefficient changes its sign are left out. A coefficient is drawn on a logarithmic scale if its standard
        error exceeds ``MOST_LINEAR`` times its absolute value.
        """
        random, deviations = np.random.default_rng(0), np.asarray(self.deviations)
        centered = self._centered(law)
        errors = dict(zip(centered.moved, self._errors(np.stack([*centered.moved.values()])), strict=True))
        signed = keeps_sign(law)
        # A coefficient fitted as nearly 0 has a huge relative error, and is drawn linearly too.
        by_logarithm = {name for name, sign in signed.items() if sign and MOST_LINEAR < errors[name] <= LARGEST_FOLDS}
        kept_signs = [name for name, sign in signed.items() if sign and name not in by_logarithm]
        drawn = np.zeros((0, len(self.axes)))
        for _ in range(MOST_ROUNDS):
            more = random.standard_normal((count, len(self.axes))) * deviations
            kept = (
                np.all([more @ centered.moved[name] > -1 for name in kept_signs], axis=0) if kept_signs else slice(None)
            )
            drawn = np.concatenate([drawn, more[kept]])[:count]
            if len(drawn) == count:
                break
        return Drawn(laws=centered.laws_at(drawn, by_logarithm), steps=drawn, uncertainty=self)

    def stepped(self, law: Law) -> Stepped:
        """Return the law, and laws a small step forward and back along every axis, for finite differences.

        The covariance must exist.
        """
        sizes = STEP * np.where(np.asarray(self.deviations) > 0, self.deviations, STEP)
        steps = np.concatenate([np.zeros((1, len(sizes))), np.diag(sizes), -np.diag(sizes)])
        centered = self._centered(law)
        return Stepped(laws=centered.laws_at(steps, frozenset(keeps_sign(law))), sizes=sizes, uncertainty=self)

    def _centered(self, law: Law) -> _Centered:
        """Return a law and its axes in units of the middle of the fitted ranges."""
        units = self._units(law)
        values, tangents = self._along_axes(law, lambda one: jnp.stack([*coefficients(in_units(one, units)).values()]))
        tangents = tangents / np.where(values, values, 1.0)[:, None]
        names = [*coefficients(law)]
        return _Centered(law, units, dict(zip(names, values, strict=True)), dict(zip(names, tangents, strict=True)))

    def _units(self, law: Law) -> dict[str, float]:
        """Return the geometric middle of the fitted ranges of a law's inputs, keyed by kind of unit."""
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
        """Return plain data, keyed by field."""
        return finite(fields(self))


@dataclass(frozen=True)
class _Centered:
    """A law in units of the middle of the fitted ranges, in which it is nearly linear in its coefficients."""

    law: Law
    units: Mapping[str, float]
    values: Mapping[str, float]
    moved: Mapping[str, Float[np.ndarray, " axes"]]
    """Relative change of each coefficient per unit of every axis."""

    def laws_at(self, steps: Float[np.ndarray, "laws axes"], by_logarithm: Container[str]) -> Any:
        """Return the laws at steps along the axes; coefficients in ``by_logarithm`` move on a logarithmic scale."""
        folds = {name: steps @ along for name, along in self.moved.items()}
        shares = {
            name: np.exp(np.clip(fold, -LARGEST_FOLDS, LARGEST_FOLDS)) if name in by_logarithm else 1 + fold
            for name, fold in folds.items()
        }
        with float64():
            centered = dataclasses.replace(
                self.law, **{name: value * shares[name] for name, value in self.values.items()}
            )
            back = {kind: 1.0 / unit for kind, unit in self.units.items()}
            return jax.tree.map(np.asarray, jax.vmap(lambda one: in_units(one, back))(centered))


@dataclass(frozen=True, kw_only=True)
class Stepped:
    """A fitted law and laws a small step along each axis of its covariance.

    A number that cannot be differentiated, such as the result of a search, gets its standard error from its values
    under these laws.
    """

    laws: Law
    """A law whose coefficients are arrays: the fitted law, then one step along every axis, then one step back."""
    sizes: Float[np.ndarray, " axes"]
    uncertainty: Uncertainty
    probes: Probes | None = None
    """Laws that show which numbers the runs do not determine; None if the runs determine all."""
    method = STANDARD

    def interval_of(self, answers: object, level: float = 0.9) -> Interval:
        """Return the interval (``Spread.ends``) of a positive number from its values under the laws.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        check_level(level)
        values = np.asarray(answers, np.float64).ravel()
        if not np.isfinite(values).all():
            return UNKNOWN
        middle, (after, before) = values[:1], values[1:].reshape(2, -1)
        if (values > 0).all():
            after, before = middle * np.log(after), middle * np.log(before)
        contrasts = ((after - before) / (2 * self.sizes))[None]
        spread = Spread(
            middle=middle,
            errors=self.uncertainty._errors(contrasts),
            degrees_of_freedom=self.uncertainty._degrees_of_freedom(contrasts),
        )
        (low,), (high,) = spread.ends(level, True)
        return Interval(
            low=float(low),
            middle=float(middle[0]),
            high=float(high),
            deviation=float(spread.errors[0]),
        )


@dataclass(frozen=True, kw_only=True)
class Resamples:
    """The coefficients of a bootstrap, as a fit's file stores them. All later intervals use them."""

    coefficients: Mapping[str, tuple[float, ...]]
    """Value of every coefficient in each resample."""
    by: str
    draws: int
    """Number of groups, or runs, that each resample is drawn from."""
    unfinished: int = 0
    vanished: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Indices of the resamples in which a coefficient vanished, keyed by coefficient."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Laws drawn from the uncertainty of a fit with normal steps. Each interval has its own degrees of freedom."""

    laws: Any
    """A law whose coefficients are arrays with an entry per draw."""
    steps: Float[np.ndarray, "draws axes"]
    """Step of each draw along the axes of the covariance."""
    uncertainty: Uncertainty
    probes: Probes | None = None
    """Laws that show which numbers the runs do not determine; None if the runs determine all."""

    @property
    def method(self) -> str:
        """Method of the intervals, as text after the level."""
        return f"{len(self.steps)} laws drawn from the covariance"

    def interval_of(self, answers: Any, level: float = 0.9) -> Interval:
        """Return the interval of a positive number from its values under the drawn laws (NaN where undefined).

        Regressing its logarithm on the draws' steps along the covariance's axes gives the degrees of freedom of its
        standard error. The bounds' distances from the median, in logarithms, are scaled by the ratio of Student's t to
        the normal quantile.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        normal = interval(answers, level)
        answers = np.asarray(answers, np.float64).ravel()
        known = np.isfinite(answers)
        if np.sum(known) <= len(self.uncertainty.axes) or np.any(answers[known] <= 0):
            return normal
        centered = self.steps[known] - self.steps[known].mean(axis=0)
        contrast = np.linalg.lstsq(centered, np.log(answers[known]), rcond=None)[0]
        upper = (1 + level) / 2
        degrees_of_freedom = self.uncertainty._degrees_of_freedom(contrast[None])[0]
        wider = scipy.special.stdtrit(degrees_of_freedom, upper) / scipy.special.ndtri(upper)
        low, high = (normal.middle * float((end / normal.middle) ** wider) for end in (normal.low, normal.high))
        return dataclasses.replace(normal, low=low, high=high)


def from_json(plain: Any, inputs: Iterable[str] = FIELDS) -> Uncertainty:
    """Restore an ``Uncertainty`` from ``Uncertainty.to_json``; ``inputs`` are the inputs of the law.

    Raises:
      UserError: an entry is missing or of another type.
    """
    stored = build(Uncertainty, convert(dict, plain, "uncertainty"), "uncertainty")
    for name, (low, high) in stored.ranges.items():
        if name not in {*FIELDS, *inputs, *RATIOS, *REACH} or not 0 <= low <= high or not 0 < high < np.inf:
            raise UserError(
                f"uncertainty.ranges has {name!r} from {low:g} to {high:g}, but a range must belong to a known field "
                f"or ratio, with a lower end of at least 0 and an upper end above 0; fit again."
            )
    lengths = {len(stored.deviations), *(len(row) for rows in stored.leverages for row in rows)}
    if lengths != {len(stored.axes)}:
        raise UserError(
            f"uncertainty has {len(stored.axes)} axes, but another number of deviations or leverages; fit again."
        )
    return stored
