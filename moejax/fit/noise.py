"""How far losses scatter around a fitted law, and which runs lie out of the family of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.fit.intervals import left_by

CLIPPED = 2.5
"""Standard deviations at which a residual is clipped: what lies farther out adds no more to the noise."""
CHANCE = 0.01
"""How likely it may be that any run at all of a table without outliers is listed as one."""
NEGLIGIBLE = 1e-4
"""A residual of log loss that is smaller is never out of family: losses are printed to four digits."""
AT_STEP = " at step "
"""In the name of a point of a curve."""
SHOWN = 5
"""Runs that a sentence names one by one."""


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A run whose residual is out of the family of the others'."""

    name: str
    """What the run is called, or its row in the table."""
    measured: float
    predicted: float
    deviations: float
    """Residual of log loss, measured less predicted, in robust standard deviations of a run of its weight."""


def noise(residual: Float[np.ndarray, " runs"], weight: Float[np.ndarray, " runs"], free: int) -> float:
    """Robust standard deviation of the residual of a run of weight 1 around a fit of ``free`` coefficients.

    A run of weight w is the mean of w such runs, so that its residual counts √w times.

    A first scale is the median size of the residuals, without the ``free`` smallest, which a fit brings near 0, over
    .6745; residuals are clipped at 2.5 of it, and their mean square is corrected for the clipping and for the degrees
    of freedom. For normal residuals it is the usual estimate; one run, however far out, adds no more than 2.5 of it.
    """
    kept = weight > 0
    size = np.abs(residual[kept]) * np.sqrt(weight[kept])
    degrees_of_freedom = left_by(len(size), free)
    # At least half of the sizes are left, so that a few coefficients more do not make it the largest ones' median.
    first = float(np.median(np.sort(size)[min(free, len(size) // 2) :]) / scipy.special.ndtri(0.75))
    square = np.mean(np.minimum(size, CLIPPED * first) ** 2) / _kept_of_the_square(CLIPPED)
    return float(np.sqrt(square * len(size) / degrees_of_freedom))


def _kept_of_the_square(clip: float) -> float:
    """Mean square of a standard normal number that is clipped."""
    tail, density = float(2 * scipy.special.ndtr(-clip)), float(np.exp(-(clip**2) / 2) / np.sqrt(2 * np.pi))
    return 1 - tail - 2 * clip * density + clip**2 * tail


def log_residuals(
    predicted: Float[np.ndarray, " runs"], measured: Float[np.ndarray, " runs"], weight: Float[np.ndarray, " runs"]
) -> Float[np.ndarray, " runs"]:
    """Log of what was measured over what is predicted; 0 for a run of weight 0, of which either may have no log."""
    kept = weight > 0
    return np.log(np.where(kept, measured, 1.0) / np.where(kept, predicted, 1.0))


def outliers(
    predicted: Float[np.ndarray, " runs"],
    measured: Float[np.ndarray, " runs"],
    weight: Float[np.ndarray, " runs"],
    free: int,
    names: Sequence[str],
) -> tuple[Outlier, ...]:
    """The runs that count and lie farther out than one of so many normal residuals would, the farthest first.

    "Farther out" is a Student-t's bound of 1 % on the largest of all residuals (Bonferroni).
    """
    kept = weight > 0
    residual = log_residuals(predicted, measured, weight)
    degrees_of_freedom = int(kept.sum()) - free
    if degrees_of_freedom < 1:
        return ()
    scale = max(noise(residual, weight, free), NEGLIGIBLE / CLIPPED)
    limit = -float(scipy.special.stdtrit(degrees_of_freedom, CHANCE / (2 * kept.sum())))
    deviations = residual * np.sqrt(weight) / scale
    far = np.flatnonzero(kept & (np.abs(deviations) > limit) & (np.abs(residual) > NEGLIGIBLE))
    return tuple(
        Outlier(
            name=str(names[i]),
            measured=float(measured[i]),
            predicted=float(predicted[i]),
            deviations=float(deviations[i]),
        )
        for i in far[np.argsort(-np.abs(deviations[far]))]
    )


def outliers_in_words(outliers: Sequence[Outlier], output: str, r_squared: float) -> tuple[str, ...]:
    """A sentence about the runs out of family, with what to do; none if there is no such run."""
    if not outliers:
        return ()
    parts = [
        f"{one.name} ({output} {one.measured:.4g}, predicted {one.predicted:.4g}, {one.deviations:+.3g} standard "
        f"deviations of log {output})"
        for one in outliers[:SHOWN]
    ]
    more = f" and {len(outliers) - SHOWN} more" if len(outliers) > SHOWN else ""
    what = ("is", "it", "its") if len(outliers) == 1 else ("are", "them", "their")
    curves = Counter(one.name.rpartition(AT_STEP)[0] for one in outliers if AT_STEP in one.name)
    if curves and (curve := curves.most_common(1)[0])[1] > 1:
        remedy = (
            f"Several points of {curve[0]} are less likely to be wrong than the law's form to fail there: fit another "
            f"law of curves too (--law), and compare."
        )
    else:
        remedy = f"Look at {what[2]} logs, and leave out what diverged or is written wrongly."
    return (
        f"Out of the others' family {what[0]} {', '.join(parts)}{more}. R² {r_squared:.3f}, RMSE, AICc and BIC count "
        f"{what[1]}, so compare no laws by these; the noise hardly does. {remedy}",
    )
