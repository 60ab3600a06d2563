"""Resampled fits: how far coefficients, and decisions taken from them, depend on which runs happened to be trained."""

from __future__ import annotations

import dataclasses
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from moejax import minimise
from moejax.fit.fit_law import Progress, form_of
from moejax.fit.fit_result import FitResult
from moejax.fit.problem import data_of, laws_at
from moejax.fit.runs import Runs
from moejax.laws.law import coefficients

DECISIVE_FACTOR = 10.0
"""An interval whose ends differ by more than this factor determines nothing."""
UNDEFINED_SHARE = 0.05
"""Nor does one for which more than this share of resamples have no answer."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A range that holds the stated share of the resampled answers."""

    low: float
    middle: float
    """Median."""
    high: float
    deviation: float
    """Standard deviation."""
    undefined: float
    """Share of resamples that had no finite answer."""

    @property
    def factor(self) -> float:
        """How many times larger one end is than the other; infinite if they differ in sign."""
        ends = sorted((abs(self.low), abs(self.high)))
        return ends[1] / ends[0] if self.low * self.high > 0 else float("inf")

    @property
    def says_nothing(self) -> bool:
        """Whether the interval is so wide, or so often undefined, that the runs do not determine the answer."""
        return not (self.factor <= DECISIVE_FACTOR and self.undefined <= UNDEFINED_SHARE)

    def __str__(self) -> str:
        text = f"{self.middle:.4g} [{self.low:.4g}, {self.high:.4g}]"
        return f"{text} (not determined by these runs)" if self.says_nothing else text


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """Laws fitted to resamples of the runs."""

    laws: Any
    """One law whose coefficients are arrays with an entry per resample."""
    values: Float[np.ndarray, " resamples"]
    """Objective of each."""
    unfinished: int
    """Resamples whose search stopped at its limit of iterations."""
    by: str

    def decide(self, decision: Callable[[Any], Any]) -> Any:
        """What a function of a law gives for every resample: its pytree, with a leading axis of resamples."""
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return jax.tree.map(np.asarray, jax.jit(jax.vmap(decision))(self.laws))

    def interval(self, decision: Callable[[Any], Any], level: float = 0.9) -> Any:
        """Interval of every number that a function of a law gives, in that function's pytree."""
        return jax.tree.map(lambda answers: interval(answers, level), self.decide(decision))

    def coefficients(self, level: float = 0.9) -> dict[str, Interval]:
        """Interval of every coefficient."""
        return {name: interval(np.asarray(v), level) for name, v in coefficients(self.laws).items()}


def interval(answers: Any, level: float = 0.9) -> Interval:
    """The central interval of resampled answers, those that are not finite left out and counted.

    Raises:
      ValueError: ``level`` is not between 0 and 1.
    """
    level = check_level(level)
    answers = np.asarray(answers, np.float64).ravel()
    finite = answers[np.isfinite(answers)]
    if not len(finite):
        return Interval(low=np.nan, middle=np.nan, high=np.nan, deviation=np.nan, undefined=1.0)
    low, middle, high = np.quantile(finite, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return Interval(
        low=float(low),
        middle=float(middle),
        high=float(high),
        deviation=_deviation(finite),
        undefined=float(1 - len(finite) / len(answers)),
    )


def check_level(level: float) -> float:
    """The share of answers that an interval holds, if it is one.

    Raises:
      ValueError: it is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"The level is {level}; give a share between 0 and 1, such as 0.9.")
    return level


def _deviation(values: Float[np.ndarray, " values"]) -> float:
    """Standard deviation; infinite, without a warning, where resamples lie so far out that squares overflow."""
    with np.errstate(over="ignore"):
        return float(np.std(values))


def resample(runs: Runs, count: int, *, by: str = "group", seed: int = 0) -> Float[np.ndarray, "count runs"]:
    """Weights of ``count`` resamples, with replacement, of the runs or of whole groups.

    Runs of one architecture share its luck (seed, trunk, data order): resampling them one by one makes intervals too
    narrow, so groups are the default.
    """
    labels, drawn = RESAMPLED[by](runs), np.zeros((count, len(runs)))
    kept = runs.weight > 0
    drawn[:, kept] = group_draws(labels[kept], count, seed) * runs.weight[kept]
    return drawn


def group_draws(labels: Int[np.ndarray, " runs"], count: int, seed: int = 0) -> Float[np.ndarray, "count runs"]:
    """How often each run is drawn in ``count`` resamples of its groups, with replacement."""
    present, place = np.unique(labels, return_inverse=True)
    draws = np.random.default_rng(seed).multinomial(len(present), np.full(len(present), 1 / len(present)), size=count)
    return draws[:, place].astype(np.float64)


BLOCK = 256
"""Resamples between two savings."""

RESAMPLED: dict[str, Callable[[Runs], np.ndarray]] = {
    "group": lambda runs: runs.group,
    "run": lambda runs: np.arange(len(runs)),
}
"""What is drawn, as a label per run."""


def bootstrap(
    result: FitResult,
    runs: Runs,
    count: int = 1000,
    *,
    by: str = "group",
    seed: int = 0,
    max_iterations: int = 500,
    progress: Progress | None = None,
    kept: Path | None = None,
) -> Bootstrap:
    """Fit the law again to resamples of the runs it was fitted to, each from the fit's optimum.

    Args:
      kept: a file (.npz) that finished resamples are kept in; called again after an interruption, or with a larger
        ``count``, only what is missing is fitted. A file of another fit is written over.

    Raises:
      ValueError: the runs are not those of the fit, or ``count`` or ``by`` make no sense.
    """
    if runs.data_hash != result.data_hash:
        raise ValueError(f"The fit was made to data {result.data_hash} and these runs are {runs.data_hash}; fit again.")
    if count < 1 or by not in RESAMPLED:
        raise ValueError(f"Asked for {count} resamples by {by!r}; give at least 1, by one of {', '.join(RESAMPLED)}.")
    form = form_of(result)
    data = data_of(form, runs, result.fixed)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        start = np.asarray(form.point_of(result.law, data))
    weights = resample(runs, count, by=by, seed=seed)
    key = f"{result.data_hash} {result.coefficients} {result.fixed} {by} {seed} {max_iterations}"
    points, values, iterations = _read(kept, key, len(start))
    while (done := len(points)) < count:
        block = weights[done : done + BLOCK]
        lanes = minimise.minimise_lanes(
            form, np.tile(start, (len(block), 1)), data, block, tolerance=1e-6, max_iterations=max_iterations
        )
        points = np.concatenate([points, lanes.points])
        values = np.concatenate([values, lanes.values])
        iterations = np.concatenate([iterations, lanes.iterations])
        _write(kept, key, points, values, iterations)
        if progress:
            progress("resampling", len(points), count)
    points, values, iterations = points[:count], values[:count], iterations[:count]
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        laws = jax.tree.map(np.asarray, laws_at(form, points, data))
    return Bootstrap(
        laws=laws,
        values=values * data["scale"],
        unfinished=int(np.sum(iterations >= max_iterations)),
        by=by,
    )


def _read(kept: Path | None, key: str, free: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, values and iterations of the resamples that a file holds of this fit."""
    if kept is not None and kept.is_file():
        try:
            with np.load(kept) as file:
                if str(file["key"]) == key:
                    return file["points"], file["values"], file["iterations"]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            pass  # Not a file that we wrote: it holds no resample of this fit.
    return np.zeros((0, free)), np.zeros(0), np.zeros(0, int)


def _write(kept: Path | None, key: str, points: np.ndarray, values: np.ndarray, iterations: np.ndarray) -> None:
    if kept is not None:
        partial = kept.with_name(f".{os.getpid()}.{kept.name}")
        np.savez(partial, key=key, points=points, values=values, iterations=iterations)
        os.replace(partial, kept)


def to_json(result: FitResult, resampled: Bootstrap, level: float = 0.9) -> dict[str, Any]:
    """Intervals as plain data; what is not finite is null."""
    intervals = {
        name: {k: v if np.isfinite(v) else None for k, v in dataclasses.asdict(found).items()}
        | {"says_nothing": found.says_nothing}
        for name, found in resampled.coefficients(level).items()
        if name not in result.fixed
    }
    return {
        "resamples": len(resampled.values),
        "by": resampled.by,
        "level": level,
        "unfinished": resampled.unfinished,
        "coefficients": intervals,
    }


def table(result: FitResult, resampled: Bootstrap, level: float = 0.9) -> str:
    """Coefficients with their intervals, as text."""
    lines = [f"{'coefficient':<26}{'fit':>14}{'SD':>12}   {level:.0%} interval, {len(resampled.values)} resamples"]
    for name, found in resampled.coefficients(level).items():
        if name not in result.fixed:
            lines.append(f"{name:<26}{result.coefficients[name]:>14.6g}{found.deviation:>12.4g}   {found}")
    if resampled.unfinished:
        lines.append(
            f"! {resampled.unfinished} resamples were stopped before they converged: intervals of what these runs "
            f"cannot tell apart are too narrow."
        )
    return "\n".join(lines)
