"""Find the modes of a law's posterior for any number of runs, by least squares with a prior from many initial guesses.

A fit without a prior needs as many runs as the law has coefficients, and a linearization at its optimum ignores other
modes. With a prior centered at the middle of a fit's initial guesses, fewer runs suffice. Each mode is kept with its
share of the posterior by Laplace's approximation. A plan accounts for all modes, and also values runs that distinguish
modes (``criterion.py``).

No law holds everywhere. The misfit at small runs is not independent noise, so many small runs would dominate a fit.
If the runs support it, the noise therefore grows with the distance of a run from the target designs, and a plan prefers
nearer runs. If a few runs are outliers, the noise has a Student's t distribution (``Noise``).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from moejax.errors import UserError
from moejax.fit.runs import Runs
from moejax.fit.search.objective import FitObjective, Squared, data_of
from moejax.fit.search.starts import Sobol, middle_and_spread
from moejax.float64 import float64
from moejax.laws.design import Design, design_from, in_units, known
from moejax.minimize import least_squares

DRAWN = 256
"""Number of initial guesses, which are drawn once."""
FOLLOWED = 16
"""Number of best initial guesses from which the search runs."""
LENGTHS = (64, 512)
"""Numbers of rows to which a request is padded, so that few programs are compiled; longer requests get all rows."""
MOST = 3
"""Maximum number of modes to keep."""
LEAST_SHARE = 0.01
"""Smallest share of the posterior at which a mode is kept."""
STEPS = 100
"""Maximum number of steps of a search."""
GROWTHS = (0.0, 0.3, 1.0, 3.0)
"""Candidate values for the growth of noise with the distance from the target designs (``Noise``)."""
TAILS = (0.0, 4.0)
"""Candidate degrees of freedom of the noise's Student's t; 0 for normal noise."""
GROWTH_EVIDENCE, TAILS_EVIDENCE = 3.0, 6.0
"""Minimum log evidence for growing noise against constant noise, and for heavy tails against normal noise.

Heavy tails could also discount costly runs that a law misfits, although the law should follow these runs.
"""
LEVELS, SETTLED = 30, 0.01
"""Maximum rounds for the noise level with heavy tails, and the relative change at which the level has converged."""
TRIED, TRIED_STEPS = 8, 30
"""Number of local optima to optimize for each of ``GROWTHS`` and ``TAILS``, and steps of each of the two passes."""
LOWEST = 0.1
"""Share of the typical loss below which the logarithm is replaced by its tangent."""
APART = 1.0
"""Distance, in posterior standard deviations, below which two local optima count as one mode."""
WIDER = 2.0
"""Ratio of the prior's standard deviation to half the box of a fit's initial guesses; a narrow prior would bias fits to
few runs."""
USUAL_NOISE, USUAL_RUNS = 0.005, 2.0
"""Prior noise of log losses around a law, and the number of runs that the prior counts as."""
FACTOR, EDGE = 2.0, 0.1
"""Factor and standard deviation of the prior on the log losses of target designs.

The prior expects log losses of target designs in an extended range of the runs' log losses. The range is extended on
each side by its width plus the logarithm of the factor. Beyond it, the prior is normal with this standard deviation.
"""
ASKED = 128
"""Maximum number of target designs that the prior evaluates, spread evenly over all target designs."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise of log losses around a law, including misfit."""

    level: float
    """Standard deviation of the run nearest to the target designs."""
    growth: float = 0.0
    """Growth with distance: a run d e-folds farther than the nearest run has 1 + (growth · d)² times its variance."""
    tails: float = 0.0
    """Degrees of freedom of a Student's t with scale ``level``; 0 for normal noise."""

    def weights(self, farther: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
        """Return each run's weight relative to the nearest run, from its additional distance."""
        return 1 / (1 + (self.growth * np.maximum(farther, 0.0)) ** 2)

    def residuals(self, off: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the signed root of the deviance of residuals (in units of the level), and its derivative."""
        if not self.tails:
            return off, np.ones_like(off)
        root = np.sign(off) * np.sqrt((self.tails + 1) * np.log1p(off**2 / self.tails))
        # Near 0 use the linear limit, which avoids 0 / 0.
        near = np.abs(root) < 1e-9
        slope = (self.tails + 1) * off / (self.tails + off**2) / np.where(near, 1.0, root)
        return root, np.where(near, np.sqrt((self.tails + 1) / self.tails), slope)

    def counts(self, off: np.ndarray) -> np.ndarray:
        """Return the effective number of normal runs of each run, from its residual, for the level and the
        precision."""
        return (self.tails + 1) / (self.tails + off**2) if self.tails else np.ones_like(off)

    @property
    def log_constant(self) -> float:
        """Logarithm of the density at a residual of 0, relative to normal noise."""
        if not self.tails:
            return 0.0
        ratio = math.lgamma((self.tails + 1) / 2) - math.lgamma(self.tails / 2)
        return ratio - 0.5 * math.log(self.tails / 2)


def distance(runs: Design, asked: Design) -> Float[np.ndarray, " runs"]:
    """Return the distance of each run from the nearest target design, in e-folds.

    The distance is Euclidean in the logarithms of the positive fields that both designs have; 0 if there are no such
    fields.
    """
    mine, others = known(runs), known(asked)
    both = [name for name in mine if name in others and np.ndim(mine[name]) == 1]
    both = [name for name in both if np.all(np.asarray(mine[name]) > 0) and np.all(np.asarray(others[name]) > 0)]
    if not both:
        return np.zeros(length(runs))
    here, there = (np.stack([np.log(np.atleast_1d(one[name])) for name in both], axis=1) for one in (mine, others))
    return np.sqrt(np.array([((there - point) ** 2).sum(axis=1).min() for point in here]))


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A mode of a posterior."""

    point: Float[np.ndarray, " free"]
    share: float
    """Share of the posterior by Laplace's approximation."""


class PosteriorModes:
    """The posterior of a law given the trained runs of a pool.

    Args:
      law: class of the law.
      pool: runs that could be trained; only the losses of runs marked as trained are read.
      target: designs whose losses are requested, if any; the prior excludes laws with implausible losses at these
        designs (``FACTOR``).
      apart: distance of each pool run from the target designs, in e-folds (``distance``); without it, noise is
        constant.
      fixed: fixed coefficients.
    """

    def __init__(
        self,
        law: type,
        pool: Runs,
        target: Design | None = None,
        *,
        apart: Float[np.ndarray, " pool"] | None = None,
        fixed: Mapping[str, float] | None = None,
        seed: int = 0,
    ):
        fixed = dict(fixed or {})
        self.objective = FitObjective(law, Squared(), tuple(sorted(fixed)), pool.output)
        self.loss = pool.loss
        self.farther = np.zeros(len(pool)) if apart is None else apart - np.min(apart)
        self.data = data_of(self.objective, replace(pool, loss=np.ones(len(pool))), fixed)
        self.data = {name: value for name, value in self.data.items() if name not in ("loss", "scale", "design")}
        asked = known(target) if target else {name: np.zeros(0) for name in known(pool.design)}
        rows = {n: np.concatenate([v, np.asarray(asked[n])]) for n, v in known(pool.design).items() if n in asked}
        self.design = in_units(design_from(rows), self.data["units"])
        answers = length(self.design) - len(pool)
        self.asked = len(pool) + np.unique(np.linspace(0, answers - 1, min(answers, ASKED)).round().astype(int))
        self.starts = Sobol(DRAWN, seed=seed)(self.objective, {**self.data})
        self.middle, spread = middle_and_spread(self.objective)
        self.spread = WIDER * spread
        self.sized = False
        self._last: tuple[bytes, Any] = (b"", None)

    def law(self, mode: Mode) -> Any:
        """Return the law at a mode."""
        with float64():
            return jax.tree.map(float, self.objective.law_at(mode.point, self.data))

    def log_losses(
        self, points: Float[np.ndarray, "points free"], rows: np.ndarray
    ) -> tuple[Float[np.ndarray, "points rows"], Float[np.ndarray, "points rows free"]]:
        """Return log losses at ``points`` for some rows of pool and target, and their derivatives (see ``LOWEST``)."""
        # Rows and points are padded to a few lengths, so that few programs are compiled.
        batch = np.concatenate([points, np.repeat(points[-1:], FOLLOWED - len(points), axis=0)])
        with float64():
            values, slopes = _log_losses(self.objective, batch, {**self.data, "design": self._filled(rows.tobytes())})
        return np.asarray(values)[: len(points), : len(rows)], np.asarray(slopes)[: len(points), : len(rows)]

    def _filled(self, rows: bytes) -> Design:
        """Return padded rows of the design; the last result is cached for the next request of a search."""
        if self._last[0] != rows:
            numbers, every = np.frombuffer(rows, np.int64), length(self.design)
            filled = np.resize(numbers, min((n for n in LENGTHS if len(numbers) <= n < every), default=every))
            with float64():
                self._last = rows, jax.tree.map(lambda v: jax.numpy.asarray(np.asarray(v)[filled]), self.design)
        return self._last[1]

    def modes(
        self,
        trained: Bool[np.ndarray, " pool"],
        noise: float | None = None,
        near: Sequence[Float[np.ndarray, " free"]] = (),
    ) -> tuple[list[Mode], Noise]:
        """Return the modes given the trained runs, the largest first, and the noise.

        Args:
          noise: standard deviation of log loss for all runs; by default the residual noise of the best mode, which
            grows with the distance from the target designs if the runs support it.
          near: additional initial guesses.
        """
        rows, seen = self.seen(trained)
        if not self.sized:
            # The first runs set the unit of losses, so that coordinates stay the same in later calls.
            self.data["typical"], self.sized = np.float64(np.exp(np.mean(seen))), True
        level = Noise(level=noise or USUAL_NOISE)
        points = np.concatenate([self.starts, *(np.asarray(p)[None] for p in near)])
        value = np.nan_to_num(self._squares(points, rows, seen, level), nan=np.inf, posinf=np.inf)
        begun = points[np.argsort(value)[:FOLLOWED]]
        begun = np.concatenate([begun[: FOLLOWED - len(near)], *(np.asarray(p)[None] for p in near)])
        if noise is None:
            # The first search only estimates the unknown noise, so few steps suffice.
            begun, value = self._followed(begun, rows, seen, level, STEPS // 3)
            level = self._likeliest_noise(begun[np.argsort(value)], rows, seen, level)
        points, value = self._followed(begun, rows, seen, level, STEPS)
        if noise is None:
            level = self._noise(points[int(np.argmin(value))], rows, seen, level)
        return _shares(self._ends(points, rows, seen, level)), level

    def _followed(
        self, points: np.ndarray, rows: np.ndarray, seen: np.ndarray, noise: Noise, steps: int
    ) -> tuple[np.ndarray, np.ndarray]:
        residuals = functools.partial(self._residuals, rows=rows, seen=seen, noise=noise)
        return least_squares(residuals, points, max_steps=steps)

    def _likeliest_noise(self, points: np.ndarray, rows: np.ndarray, seen: np.ndarray, noise: Noise) -> Noise:
        """Return the noise whose growth and tails have the highest evidence."""
        tried, points = [], points[:TRIED]
        growths = GROWTHS if np.ptp(self.farther[rows]) > 0 else GROWTHS[:1]
        for growth, tails in itertools.product(growths, TAILS):
            own = self._noise(points[0], rows, seen, replace(noise, growth=growth, tails=tails))
            for _ in range(2):
                points, value = self._followed(points, rows, seen, own, TRIED_STEPS)
                points = points[np.argsort(value)]
                own = self._noise(points[0], rows, seen, own)
            most = max(evidence for _, evidence, _ in self._ends(points, rows, seen, own))
            # Prior of the noise level.
            most -= USUAL_RUNS * (np.log(own.level) + 0.5 * (USUAL_NOISE / own.level) ** 2)
            most += np.sum(np.log(self.roots(own, rows)) + own.log_constant)
            tried.append((most - GROWTH_EVIDENCE * (growth > 0) - TAILS_EVIDENCE * (tails > 0), own))
        return max(tried, key=lambda one: one[0])[1]

    def roots(self, noise: Noise, rows: np.ndarray) -> Float[np.ndarray, " rows"]:
        """Return the inverse standard deviation of each run's log loss."""
        return np.sqrt(noise.weights(self.farther[rows])) / noise.level

    def counted(self, noise: Noise, rows: np.ndarray, off: np.ndarray) -> Float[np.ndarray, " rows"]:
        """Return ``roots``, reduced for runs whose residuals ``off`` (in log loss) are in the tails."""
        root = self.roots(noise, rows)
        return root * np.sqrt(noise.counts(off * root))

    def weights(self, mode: Mode, trained: Bool[np.ndarray, " pool"], noise: Noise) -> Float[np.ndarray, " pool"]:
        """Return the number of runs at the noise level that each run counts as under a mode; 1 if untrained."""
        (rows, seen), counts = self.seen(trained), np.ones(len(self.loss))
        (values,), _ = self.log_losses(mode.point[None], rows)
        counts[rows] = (noise.level * self.counted(noise, rows, values - seen)) ** 2
        return counts

    def seen(self, trained: Bool[np.ndarray, " pool"]) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of the trained runs, and their log losses."""
        rows = np.flatnonzero(trained)
        return rows, np.log(self.loss[rows])

    def _squares(
        self, points: np.ndarray, rows: np.ndarray, seen: np.ndarray, noise: Noise
    ) -> Float[np.ndarray, " points"]:
        """Return -2 log posterior up to a constant."""
        parts = [points[i : i + FOLLOWED] for i in range(0, len(points), FOLLOWED)]
        return np.concatenate([np.sum(self._residuals(own, rows, seen, noise)[0] ** 2, axis=1) for own in parts])

    def _residuals(
        self, points: np.ndarray, rows: np.ndarray, seen: np.ndarray, noise: Noise
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the residuals of runs, target losses and prior, in this order, and the derivatives of all
        residuals."""
        values, slopes = self.log_losses(points, np.concatenate([rows, self.asked]))
        runs, root = slice(len(rows)), self.roots(noise, rows)
        asked = values[:, len(rows) :]
        outside = asked - np.clip(asked, *expected(seen))
        steepness = slopes[:, len(rows) :] * (outside != 0)[..., None]
        eye = np.broadcast_to(np.diag(1 / self.spread), (len(points), points.shape[1], points.shape[1]))
        off, bend = noise.residuals((values[:, runs] - seen) * root)
        parts = [off, outside / EDGE, (points - self.middle) / self.spread]
        slopes = slopes[:, runs] * (bend * root)[..., None]
        return np.concatenate(parts, axis=1), np.concatenate([slopes, steepness / EDGE, eye], axis=1)

    def _noise(self, point: np.ndarray, rows: np.ndarray, seen: np.ndarray, noise: Noise) -> Noise:
        values, slopes = self.log_losses(point[None], rows)
        off = values[0] - seen
        if not np.isfinite(slopes).all():
            return noise  # ``_ends`` raises an error for this.
        for _ in range(LEVELS):
            before, counted = noise.level, self.counted(noise, rows, off)
            sizes = np.linalg.svd(slopes[0] * counted[:, None] * self.spread, compute_uv=False)
            used = np.sum(sizes**2 / (1 + sizes**2))
            square = np.sum((noise.level * counted * off) ** 2)
            runs = USUAL_RUNS + max(len(rows) - used, 0.0)
            noise = replace(noise, level=float(np.sqrt((USUAL_RUNS * USUAL_NOISE**2 + square) / runs)))
            # With tails, a run's weight depends on the level. Normal noise needs only one round.
            if not noise.tails or abs(noise.level / before - 1) < SETTLED:
                break
        return noise

    def _ends(self, points: np.ndarray, rows: np.ndarray, seen: np.ndarray, noise: Noise) -> list[_End]:
        """Return the distinct local optima, each with its evidence and precision."""
        value, kept = self._squares(points, rows, seen, noise), list[_End]()
        for i in np.argsort(value):
            if not np.isfinite(value[i]) or (kept and value[i] - value.min() > -2 * np.log(LEAST_SHARE) + 10):
                break
            values, slopes = self.log_losses(points[i][None], rows)
            scaled = slopes[0] * self.counted(noise, rows, values[0] - seen)[:, None]
            precision = scaled.T @ scaled + np.diag(self.spread**-2)
            evidence = -0.5 * value[i] - 0.5 * np.linalg.slogdet(precision)[1]
            if not np.isfinite(evidence):
                continue
            if any((points[i] - other) @ both @ (points[i] - other) < APART**2 for other, _, both in kept):
                continue
            kept.append((points[i], float(evidence), precision))
        if not kept:
            raise UserError(
                f"No fit of {self.objective.law.__name__} to {len(rows)} runs ends with finite losses and derivatives; "
                f"check the runs' sizes and losses."
            )
        return kept


_End = tuple[np.ndarray, float, np.ndarray]
"""End point of a search, with its evidence and precision."""


def _shares(ends: Sequence[_End]) -> list[Mode]:
    """Return the end points as modes with their shares of the posterior, the largest first."""
    logs = np.array([evidence for _, evidence, _ in ends])
    shares = np.exp(logs - logs.max())
    shares /= shares.sum()
    order = [i for i in np.argsort(-shares)[:MOST] if shares[i] >= LEAST_SHARE]
    total = shares[order].sum()
    return [Mode(point=ends[i][0], share=float(shares[i] / total)) for i in order]


def expected(seen: np.ndarray) -> tuple[float, float]:
    """Return the range of expected log losses, from the observed log losses (see ``FACTOR``)."""
    beyond = np.log(FACTOR) + np.ptp(seen)
    return float(seen.min() - beyond), float(seen.max() + beyond)


def _continued_log(loss: jax.Array, lowest: jax.Array | float) -> jax.Array:
    """Return the logarithm, or its tangent below ``lowest``, so that a search can pass through negative losses."""
    return jax.numpy.where(
        loss > lowest,
        jax.numpy.log(jax.numpy.maximum(loss, lowest)),
        jax.numpy.log(lowest) + loss / lowest - 1,
    )


def length(design: Design) -> int:
    """Return the number of rows of a design."""
    return max(np.size(v) for v in known(design).values())


@functools.partial(jax.jit, static_argnums=0)
def _log_losses(objective: FitObjective, points: jax.Array, data: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
    def one(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        def log_loss(p: jax.Array) -> jax.Array:
            return _continued_log(objective.predicted(p, data), LOWEST * data["typical"])

        return log_loss(point), jax.jacfwd(log_loss)(point)

    return jax.vmap(one)(points)
