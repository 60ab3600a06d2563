"""Bootstrap a fit: refit resampled runs and derive intervals of coefficients and decisions."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Bool, Float, Int

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult, check_runs_of
from moejax.fit.runs import RESAMPLED, Runs, draws_of
from moejax.fit.search.fit_law import Progress, minimize_reparametrized, objective_of
from moejax.fit.search.objective import data_of, laws_at
from moejax.fit.uncertainty.noise import left_by
from moejax.fit.uncertainty.uncertainty import Resamples, Spread
from moejax.fit.uncertainty.undetermined import Probes
from moejax.float64 import float64
from moejax.folder import atomic_write
from moejax.interval import OPEN, UNKNOWN, Interval, interval
from moejax.json_text import fields, finite
from moejax.laws.law import coefficients
from moejax.wording import counted


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Laws fitted to resamples of the runs."""

    laws: Any
    """A law whose coefficients are arrays with an entry per resample."""
    values: Float[np.ndarray, " resamples"]
    """Objective value of each resample."""
    unfinished: int
    """Number of resamples whose search reached the iteration limit."""
    by: str
    draws: int
    """Number of groups, or runs, that each resample is drawn from."""
    fit: FitResult | None = None
    """The fit to all runs. Its undetermined directions hold for every resample, since the search of a resample begins
    at the fit and does not move along them."""
    vanished: Mapping[str, Bool[np.ndarray, " resamples"]] = field(default_factory=dict)
    """Masks of the resamples in which a coefficient's search reached the lower bound, keyed by coefficient. In these
    resamples the coefficient counts as 0."""

    @classmethod
    def of(cls, fit: FitResult) -> Bootstrap:
        """Return the bootstrap that is stored with a fit (``FitResult.resamples``)."""
        kept = fit.resamples
        assert kept is not None
        count = len(next(iter(kept.coefficients.values())))
        laws = replace(fit.law, **{name: np.asarray(values) for name, values in kept.coefficients.items()})
        vanished = {name: np.isin(np.arange(count), numbers) for name, numbers in kept.vanished.items()}
        return cls(
            laws=laws,
            values=np.full(count, np.nan),
            unfinished=kept.unfinished,
            by=kept.by,
            draws=kept.draws,
            fit=fit,
            vanished=vanished,
        )

    def kept(self) -> Resamples:
        """Return the coefficients in the form that a fit's file stores."""
        return Resamples(
            coefficients={name: tuple(np.asarray(one).tolist()) for name, one in coefficients(self.laws).items()},
            by=self.by,
            draws=self.draws,
            unfinished=self.unfinished,
            vanished={name: tuple(np.flatnonzero(one).tolist()) for name, one in self.vanished.items() if one.any()},
        )

    @property
    def method(self) -> str:
        """Method of the intervals, as text after the level."""
        return f"bootstrap of {counted(len(self.values), 'resample')} by {self.by}"

    def evaluate(self, functional: Callable[[Any], Any]) -> Any:
        """Evaluate a function of a law for every resample; the leaves of its pytree get a leading axis of resamples."""
        with float64():
            return jax.tree.map(np.asarray, jax.jit(jax.vmap(functional))(self.laws))

    def interval(self, functional: Callable[[Any], Any], level: float = 0.9) -> Any:
        """Return the interval of every number of a functional, in the structure of its pytree. An interval is unbounded
        if the runs do not determine the number."""
        leaves, tree = jax.tree.flatten(self.evaluate(functional))
        intervals = [self.interval_of(answers, level) for answers in leaves]
        if self.fit is None:
            return tree.unflatten(intervals)
        unknown = self.fit.unknown(functional, len(intervals), np.array([one.deviation for one in intervals]))
        return tree.unflatten([OPEN if why else one for one, why in zip(intervals, unknown, strict=True)])

    @property
    def few(self) -> str:
        """Clause stating that there are too few draws for intervals; empty if they outnumber the coefficients."""
        return "" if self.fit is None else self.fit.too_few(self.draws, self.by)

    def spread(self, functional: Callable[[Any], Any]) -> Spread:
        """Return the spread of every number of a functional (flattened) over the resampled laws."""
        assert self.fit is not None
        answers = self.evaluate(lambda law: ravel_pytree(functional(law))[0])
        # Laws without a finite number are left out here, but counted by intervals.
        known = np.where(np.isfinite(answers), answers, np.nan)
        errors = np.nanstd(known, axis=0)
        degrees_of_freedom = np.full(len(errors), float(left_by(self.draws, self.fit.free)))
        spread = Spread(middle=np.nanmean(known, axis=0), errors=errors, degrees_of_freedom=degrees_of_freedom)
        return spread.without(self.fit.unknown(functional, len(errors), errors))

    @property
    def probes(self) -> Probes | None:
        """Perturbed laws that fit equally well; a number that differs between them is not determined. None if the runs
        determine all numbers."""
        return None if self.fit is None else self.fit.probes

    def interval_of(self, answers: Any, level: float = 0.9) -> Interval:
        """Return the interval of a number from its values under all resampled laws.

        The interval is NaN if there is only one group, because every resample then equals the table.
        """
        return interval(answers, level) if self.draws > 1 else UNKNOWN

    def coefficients(self, level: float = 0.9) -> dict[str, Interval]:
        """Return the interval of every coefficient, keyed by name.

        A coefficient that vanished in a resample counts as 0 in that resample. A coefficient that the runs do not
        determine has an unbounded interval.
        """
        lost = frozenset() if self.fit is None else self.fit.without_error - {*self.fit.fixed}
        return {
            name: OPEN
            if name in lost
            else self.interval_of(np.where(self.vanished.get(name, False), 0.0, np.asarray(v)), level)
            for name, v in coefficients(self.laws).items()
        }

    def stored(self, level: float = 0.9) -> ResampledCoefficients:
        """Return the intervals of the fitted coefficients in the form that a fit's file stores."""
        given = set() if self.fit is None else {*self.fit.fixed, *self.fit.without_effect}
        return ResampledCoefficients(
            resamples=len(self.values),
            by=self.by,
            draws=self.draws,
            level=level,
            unfinished=self.unfinished,
            coefficients={name: one for name, one in self.coefficients(level).items() if name not in given},
            few=self.few,
        )


@dataclass(frozen=True, kw_only=True)
class ResampledCoefficients:
    """Intervals of the fitted coefficients over resamples."""

    resamples: int
    by: str
    draws: int
    level: float
    unfinished: int
    coefficients: Mapping[str, Interval]
    few: str = ""
    """``Bootstrap.few``."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by field; non-finite numbers become null."""
        every = {name: finite(one) | {"uninformative": one.uninformative} for name, one in self.coefficients.items()}
        few = {"few": self.few} if self.few else {}
        return {**fields(self, "coefficients", "few"), "coefficients": every, **few}


def resample(runs: Runs, count: int, *, by: str = "group", seed: int = 0) -> Float[np.ndarray, "count runs"]:
    """Return the weights of ``count`` resamples, with replacement, of runs or of whole groups.

    Runs of one architecture share a random effect (seed, trunk, data order). Resampling such runs individually makes
    intervals too narrow, so groups are the default.
    """
    labels, drawn = RESAMPLED[by](runs), np.zeros((count, len(runs)))
    kept = runs.weight > 0
    drawn[:, kept] = group_draws(labels[kept], count, seed) * runs.weight[kept]
    return drawn


def group_draws(labels: Int[np.ndarray, " runs"], count: int, seed: int = 0) -> Float[np.ndarray, "count runs"]:
    """Return how often each run is drawn in ``count`` resamples of its groups, with replacement."""
    present, place = np.unique(labels, return_inverse=True)
    draws = np.random.default_rng(seed).multinomial(len(present), np.full(len(present), 1 / len(present)), size=count)
    return draws[:, place].astype(np.float64)


BLOCK = 256
"""Number of resamples per saved block."""


def bootstrap(
    result: FitResult,
    runs: Runs,
    count: int = 1000,
    *,
    by: str | None = None,
    seed: int | None = None,
    max_iterations: int = 500,
    progress: Progress | None = None,
    kept: Path | None = None,
) -> Bootstrap:
    """Refit the law to resamples of its runs, each starting from the fit's optimum.

    Args:
      by: unit of a draw, ``group`` or ``run``; by default that of the fit's standard errors, or ``group``.
      seed: seed of the resamples; by default the fit's, so that every command draws the same resamples.
      kept: a file (.npz) that stores finished resamples. A later call, after an interruption or with a larger
        ``count``, fits only the missing resamples. A file of another fit is overwritten.

    Raises:
      UserError: the fit was made to other runs, or ``count`` or ``by`` is invalid.
    """
    check_runs_of(result, runs)
    by = by or ("group" if result.uncertainty is None else result.uncertainty.by)
    seed = result.seed if seed is None else seed
    if count < 1 or by not in RESAMPLED:
        raise UserError(f"Give at least 1 resample, by {' or '.join(RESAMPLED)}; got {count} resamples by {by!r}.")
    objective = objective_of(result)
    data = data_of(objective, runs, result.fixed)
    with float64():
        start = np.asarray(objective.point_of(result.law, data))
    # The gradient is 0 at a bound of the search, so move the initial guess off the bound; no resample could leave it.
    start = np.where(objective.at_an_end(start), np.sign(start) * objective.widest / 2, start)
    weights = resample(runs, count, by=by, seed=seed)
    drawn = hashlib.sha256(np.unique(RESAMPLED[by](runs), return_inverse=True)[1].astype("<i8").tobytes()).hexdigest()
    # The data hash excludes groups, because coefficients do not depend on them. The draws do, so the key includes them.
    key = f"reparametrized {result.data_hash} {drawn} {result.coefficients} {result.fixed} {by} {seed} {max_iterations}"
    points, values, iterations = _read(kept, key, len(start))
    while (done := len(points)) < count:
        block = weights[done : done + BLOCK]
        lanes = minimize_reparametrized(
            objective, start, data, runs.weight, block, tolerance=1e-6, max_iterations=max_iterations
        )
        points = np.concatenate([points, lanes.points])
        values = np.concatenate([values, lanes.values])
        iterations = np.concatenate([iterations, lanes.iterations])
        _write(kept, key, points, values, iterations)
        if progress:
            progress("resampling", len(points), count)
    points, values, iterations = points[:count], values[:count], iterations[:count]
    with float64():
        laws = jax.tree.map(np.asarray, laws_at(objective, points, data))
    return Bootstrap(
        laws=laws,
        values=values * data["scale"],
        unfinished=int(np.sum(iterations >= max_iterations)),
        by=by,
        draws=draws_of(runs, by),
        fit=result,
        vanished=dict(zip(objective.free, (objective.at_an_end(points) & (points < 0)).T, strict=True)),
    )


def _read(kept: Path | None, key: str, free: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if kept is not None and kept.is_file():
        try:
            with np.load(kept) as file:
                if str(file["key"]) == key:
                    return file["points"], file["values"], file["iterations"]
        except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
            pass  # A foreign or damaged file has no resamples of this fit, so start from none.
    return np.zeros((0, free)), np.zeros(0), np.zeros(0, int)


def _write(kept: Path | None, key: str, points: np.ndarray, values: np.ndarray, iterations: np.ndarray) -> None:
    if kept is not None:
        with atomic_write(kept) as partial:
            np.savez(partial, key=key, points=points, values=values, iterations=iterations)
