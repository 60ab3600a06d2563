"""Intervals: degrees of freedom of a standard error, ends of confidence intervals, ranges of runs that are not yet
trained.

Degrees of freedom are how many draws (groups of runs, or runs) one number's standard error rests on. A table may have
forty groups and one of them alone vary what a coefficient describes; that coefficient's error then rests on one draw,
and Student's t must say so. Satterthwaite's degrees of freedom, by Bell and McCaffrey (2002), are those of a
chi-squared with the mean and variance that the estimated variance has where residuals are independent and alike.

Ends are linear for numbers of either sign, in the logarithm of the size for others, of the odds for shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float

from moejax.interval import check_level

Numbers = Float[np.ndarray, " answers"]


def keeps_sign(law: Any) -> dict[str, bool]:
    """Whether a law's coefficients have a sign of their own, by name; one that is declared ``any`` may be 0.

    Args:
      law: a law, or its class.
    """
    return {f.name: f.metadata["sign"] != "any" for f in dataclasses.fields(law) if not f.metadata.get("static")}


def ends(middle: Numbers, reach: Numbers, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
    """Both ends of the intervals of some numbers.

    A number that keeps its sign is spread in the logarithm of its size, in which a law is more nearly linear, so that
    its interval keeps it too. Any other is spread as it is: its interval may hold 0.

    Args:
      middle: the numbers.
      reach: standard errors times Student's t.
      one_sign: whether each of them keeps its sign.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.exp(reach / np.abs(middle))
        folded = np.sort(np.stack([middle / factor, middle * factor]), axis=0)
    linear = np.stack([middle - reach, middle + reach])
    low, high = np.where(np.asarray(one_sign) & (middle != 0), folded, linear)
    return low, high


def share_ends(middle: Numbers, reach: Numbers) -> tuple[Numbers, Numbers]:
    """Both ends of the intervals of shares, between 0 and 1: those of the odds, share over rest, in their logarithm."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds_ends = ends(middle / (1 - middle), reach / (1 - middle) ** 2, True)
        low, high = (1 / (1 + 1 / odds) for odds in odds_ends)
    return low, high


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far some estimated numbers may be off."""

    middle: Numbers
    errors: Numbers
    """Standard errors; NaN where there are none."""
    degrees_of_freedom: Numbers
    """Degrees of freedom of Student's t, of each number's own error."""
    unknown: tuple[str, ...] = ()
    """Why each number has no error (``FitResult.unknown``), empty words where it has one; no entries if all have."""

    def without(self, unknown: Sequence[str]) -> Spread:
        """The same, with no error where there are words why."""
        errors = np.where([bool(why) for why in unknown], np.nan, self.errors)
        return dataclasses.replace(self, errors=errors, unknown=tuple(unknown))

    def ends(self, level: float, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
        """Both ends of each number's interval.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return ends(self.middle, self._reach(level), one_sign)

    def share_ends(self, level: float) -> tuple[Numbers, Numbers]:
        """Both ends of shares, which stay between 0 and 1.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return share_ends(self.middle, self._reach(level))

    def _reach(self, level: float) -> Numbers:
        return scipy.special.stdtrit(self.degrees_of_freedom, (1 + check_level(level)) / 2) * self.errors


@dataclass(frozen=True, kw_only=True)
class PredictionIntervals:
    """Ranges for new runs, one entry each."""

    low: Float[np.ndarray, " designs"]
    loss: Float[np.ndarray, " designs"]
    high: Float[np.ndarray, " designs"]
    from_coefficients: float
    """Share of the variance, over all designs that have a range, that is due to the coefficients; the rest is lack of
    fit. NaN where none has one."""
    unknown: tuple[str, ...]
    """Why each has no range (``FitResult.unknown``); empty words where it has one."""


def left_by(count: int, free: int) -> int:
    """Degrees of freedom that a fit of ``free`` coefficients leaves of so many runs or draws, at least 1."""
    return max(count - free, 1)


Leverages = Sequence[Float[np.ndarray, "_ axes"]]
"""By draw: its orthogonal directions among axes that are orthonormal over the runs, each as long as the root of the
leverage that the draw has in it."""
Contrasts = Float[np.ndarray, "answers axes"]
"""What a unit along every axis adds to each number."""

WHOLE = 3e-6
"""A draw whose leverage is this near 1 in a direction sets it alone, and has no residual there.

Leverages may come rounded to six digits, and one of 1 may then lie this far below it.
"""


def stretch(sizes: Float[np.ndarray, " rank"]) -> Float[np.ndarray, " rank"]:
    """(1 - leverage)^(-1/2), by which CR2 widens a draw's residuals; 0 where it has none.

    Args:
      sizes: roots of leverages.
    """
    remaining = 1 - sizes**2
    return np.where(remaining > WHOLE, 1 / np.sqrt(np.maximum(remaining, WHOLE)), 0.0)


def satterthwaite(leverages: Leverages, contrasts: Contrasts) -> Float[np.ndarray, " answers"]:
    """(tr P)² / |P|², with P the covariances of all parts of a number's variance; 1 if no residual speaks of it.

    A draw's part of the number's variance is the square of a·e, with e its residuals, a the widened contrast within the
    draw, and u what the fit takes back of it: P = diag(|a|²) - u·uᵀ. In directions that a draw sets alone the variance
    is taken for the mean over all others; that mean is a sum of such parts too, and has its own degrees of freedom.
    """
    axes = contrasts.shape[1]
    # The ratio does not depend on a contrast's length, and the squares of a long one would overflow.
    length = np.max(np.abs(contrasts), axis=1, initial=0.0, keepdims=True)
    measured = np.isfinite(length) & (length > 0)
    contrasts = np.where(measured, contrasts, 0.0) / np.where(measured, length, 1.0)
    lost = alone(leverages, axes)
    others = axes - np.trace(lost)
    if others <= WHOLE:
        return np.ones(len(contrasts))
    # |P|² of the contrast itself, of the mean over the others, and their product.
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
    # CR2 is right in the mean: tr P is the contrast's square.
    trace = np.sum(contrasts**2, axis=1)
    known = (trace > 0) & (size > 0)
    return np.where(known, np.maximum(trace**2 / np.where(known, size, 1.0), 1.0), 1.0)


def parts(leverages: Leverages, contrasts: Contrasts) -> Float[np.ndarray, "answers draws"]:
    """What every draw adds to the variance of each number, if residuals are independent and of variance 1."""
    return np.stack([np.sum((contrasts @ rows.T) ** 2, axis=1) for rows in leverages], axis=1)


def set_alone(leverages: Leverages) -> list[Float[np.ndarray, "_ axes"]]:
    """The directions that each draw sets alone, whose residuals say nothing of its luck."""
    return [rows[stretch(np.linalg.norm(rows, axis=1)) == 0] for rows in leverages]


def alone(leverages: Leverages, axes: int) -> Float[np.ndarray, "axes axes"]:
    """The projection onto the directions that one draw sets alone."""
    # Their leverage is 1, and so is their length.
    return sum((rows.T @ rows for rows in set_alone(leverages)), np.zeros((axes, axes)))
