"""Estimate the noise of losses around a fitted law, and find outliers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.wording import option_hint

CLIPPED = 2.5
"""Standard deviations at which a residual is clipped, so that an outlier adds a bounded amount to the noise."""
CHANCE = 0.01
"""Probability that any run of a table without outliers is listed as an outlier."""
NEGLIGIBLE = 1e-4
"""Residual of log loss below which a run is never an outlier: losses are printed with four digits."""
AT_STEP = " at step "
"""Separator between curve and step in the name of a curve's point."""
SHOWN = 5
"""Maximum number of runs that a sentence lists."""


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """A run whose residual is an outlier."""

    name: str
    """Name of the run, or its row in the table."""
    measured: float
    predicted: float
    deviations: float
    """Measured minus predicted log loss, in robust standard deviations of a run with the same weight."""


def left_by(count: int, free: int) -> int:
    """Return the degrees of freedom left by a fit of ``free`` coefficients to ``count`` runs or draws, at least 1."""
    return max(count - free, 1)


def noise(residual: Float[np.ndarray, " runs"], weight: Float[np.ndarray, " runs"], free: int) -> float:
    """Return the robust standard deviation of a run's residual at weight 1, for a fit of ``free`` coefficients.

    A run of weight w is the mean of w runs of weight 1, so its residual is multiplied by √w.

    Residuals are clipped at 2.5 times their ``median_scale``. Their mean square is corrected for the clipping and for
    the degrees of freedom. For normal residuals this is the usual estimate; a single outlier adds at most 2.5
    times the scale.
    """
    kept = weight > 0
    size = np.abs(residual[kept]) * np.sqrt(weight[kept])
    degrees_of_freedom = left_by(len(size), free)
    first = median_scale(size, free)
    square = np.mean(np.minimum(size, CLIPPED * first) ** 2) / _kept_of_the_square(CLIPPED)
    return float(np.sqrt(square * len(size) / degrees_of_freedom))


def median_scale(size: Float[np.ndarray, " runs"], free: int) -> float:
    """Return the median absolute residual divided by 0.6745, omitting the ``free`` smallest residuals, which a fit
    brings near 0.

    At least half of the residuals are kept, so that many coefficients do not leave only the largest residuals.
    """
    return float(np.median(np.sort(size)[min(free, len(size) // 2) :]) / scipy.special.ndtri(0.75))


def _kept_of_the_square(clip: float) -> float:
    """Return the mean square of a standard normal variable that is clipped at ``clip``."""
    tail, density = float(2 * scipy.special.ndtr(-clip)), float(np.exp(-(clip**2) / 2) / np.sqrt(2 * np.pi))
    return 1 - tail - 2 * clip * density + clip**2 * tail


def log_residuals(
    predicted: Float[np.ndarray, " runs"], measured: Float[np.ndarray, " runs"], weight: Float[np.ndarray, " runs"]
) -> Float[np.ndarray, " runs"]:
    """Return log(measured / predicted); 0 for runs of weight 0, whose values may have no logarithm."""
    kept = weight > 0
    return np.log(np.where(kept, measured, 1.0) / np.where(kept, predicted, 1.0))


def outliers(
    predicted: Float[np.ndarray, " runs"],
    measured: Float[np.ndarray, " runs"],
    weight: Float[np.ndarray, " runs"],
    free: int,
    names: Sequence[str],
) -> tuple[Outlier, ...]:
    """Return the outliers among the runs with positive weight, the largest first.

    The bound is Student's t at 1 % for the largest of all residuals (Bonferroni).
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
    """Return sentences about the outliers with a remedy; empty if there are no outliers."""
    if not outliers:
        return ()
    parts = [
        f"{one.name} ({output} {one.measured:.4g}, predicted {one.predicted:.4g}, {one.deviations:+.3g} standard "
        f"deviations of log {output})"
        for one in outliers[:SHOWN]
    ]
    more = f" and {len(outliers) - SHOWN} more" if len(outliers) > SHOWN else ""
    them, their = ("it", "its") if len(outliers) == 1 else ("them", "their")
    curves = Counter(one.name.rpartition(AT_STEP)[0] for one in outliers if AT_STEP in one.name)
    if curves and (curve := curves.most_common(1)[0])[1] > 1:
        remedy = (
            f"Several outliers of {curve[0]} suggest that the law's form fails there; fit another loss-curve law too "
            f"{option_hint('(--law), ')}and compare."
        )
    else:
        remedy = f"Check {their} logs, and leave out diverged runs and wrong values."
    return (
        f"Outliers: {', '.join(parts)}{more}. R² {r_squared:.3f}, RMSE, AICc and BIC include {them}, so do not "
        f"compare laws by these; the noise estimate is robust. {remedy}",
    )
