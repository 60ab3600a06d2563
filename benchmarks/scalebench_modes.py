"""Build Gaussian posteriors of a law around its posterior modes, with target designs as answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from moejax.experimental_design.laplace_posterior import LaplacePosterior
from moejax.experimental_design.posterior_modes import LOWEST, Mode, Noise, PosteriorModes, expected, length

STEEPEST = 1e3
"""Maximum change of a log loss per standard deviation of the prior, in a plan.

Exponentials of powers change by 1e10 around the center of the prior, and such information matrices cannot be inverted
accurately.
"""


class AskedModes(PosteriorModes):
    """Posterior modes with the target's losses as answers and the pool's runs as candidates."""

    def losses(self, logs: np.ndarray) -> np.ndarray:
        """Return losses from log losses, including the tangent continuation."""
        lowest = LOWEST * float(self.data["typical"])
        return np.where(logs > np.log(lowest), np.exp(logs), lowest * (1 + logs - np.log(lowest)))

    def expected_losses(
        self, modes: Sequence[Mode], trained: Bool[np.ndarray, " pool"], noise: Noise
    ) -> Float[np.ndarray, " answers"]:
        """Return the target's losses averaged over the posterior; the largest mode alone is only its maximum.

        Around every mode a log loss is normal, truncated to the expected range (``FACTOR``); modes are weighted by
        their shares. For undetermined losses this is the center of the possible range; for determined losses it agrees
        with the modes.
        """
        from scipy.stats import truncnorm

        low, high = expected(self.seen(trained)[1])
        means = []
        for one in self.posteriors(modes, trained, noise):
            scale = np.maximum(one.deviations, 1e-12)
            mean = truncnorm.mean(*((end - one.answers) / scale for end in (low, high)), loc=one.answers, scale=scale)
            # Far outside the range, rounding dominates, and the mean is at the bound.
            means.append(np.clip(np.where(np.isfinite(mean), mean, one.answers), low, high))
        shares = np.array([mode.share for mode in modes])
        return np.tensordot(shares / shares.sum(), self.losses(np.stack(means)), 1)

    def posteriors(
        self, modes: Sequence[Mode], trained: Bool[np.ndarray, " pool"], noise: Noise
    ) -> list[LaplacePosterior]:
        """Return the posterior around each mode: the pool's runs are candidates, the target's losses are answers."""
        pool, rows = np.arange(len(self.loss)), np.flatnonzero(trained)
        every = np.arange(length(self.design))
        values, slopes = self.log_losses(np.stack([mode.point for mode in modes]), every)
        size = np.linalg.norm(slopes * self.spread, axis=-1, keepdims=True)
        slopes = slopes * (STEEPEST / np.maximum(size, STEEPEST))
        posteriors, root = [], self.roots(noise, pool)
        for mode, value, slope in zip(modes, values, slopes, strict=True):
            counted = self.counted(noise, rows, value[rows] - self.seen(trained)[1])
            own = slope[rows] * counted[:, None]
            posteriors.append(
                LaplacePosterior(
                    weight=mode.share,
                    noise=noise.level,
                    shared=0.0,
                    precision=own.T @ own + np.diag(self.spread**-2),
                    slopes=slope[pool] * root[:, None],
                    candidate_weights=noise.weights(self.farther),
                    predicted=value[pool],
                    scores=own * counted[:, None],
                    fitted=value[rows],
                    model=np.zeros(len(pool), int),
                    model_runs=np.zeros((len(rows), 1)),
                    run_slopes=own,
                    answers=value[len(pool) :],
                    answer_slopes=slope[len(pool) :],
                )
            )
        return posteriors
