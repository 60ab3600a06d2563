"""Compute intervals: degrees of freedom of standard errors, ends of confidence intervals, and prediction ranges.

The degrees of freedom measure how many draws (groups of runs, or runs) determine one number's standard error. A table
may have forty groups of which only one varies the quantity that a coefficient describes. That coefficient's error
depends on one draw, and Student's t must account for this. Satterthwaite's degrees of freedom match a chi-squared
variable to the mean and variance of the variance estimate, for independent and identically distributed residuals (Bell
and McCaffrey 2002).

Intervals are linear for numbers of any sign, logarithmic for numbers that keep their sign, and in log odds for shares.
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


def left_by(count: int, free: int) -> int:
    """Return the degrees of freedom that a fit of ``free`` coefficients leaves of ``count`` runs or draws,
    at least 1."""
    return max(count - free, 1)


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
