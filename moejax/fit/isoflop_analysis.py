"""IsoFLOP surfaces over one kind of size: degrees, optima beside those of independent curves and of a law, trends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.fit.bootstrap import Bootstrap
from moejax.fit.fit_law import Progress
from moejax.fit.isoflop_budgets import Budget
from moejax.fit.isoflop_curves import SIZE_ENDS, IsoflopOptimum, best_sizes_by_curves, end, finite, optimum_of
from moejax.fit.isoflop_surfaces import (
    DegreeSearch,
    Surface,
    best_pair,
    best_sizes,
    best_sparsities,
    fit_surfaces,
    round_sizes,
    search_degrees,
)
from moejax.fit.power_laws import power_through
from moejax.float64 import float64
from moejax.laws.argmin import argmin_between
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.sparsity import Sparsity


def best_sizes_by_law(
    law: Sparsity, resampled: Bootstrap, budget: Budget, level: float = 0.9
) -> tuple[IsoflopOptimum, ...]:
    """N* of Eq. 6 at every sparsity that was trained at several sizes, between the smallest and the largest of them.

    The tokens that a size has at the budget are those of the table: a power of N through the runs of that sparsity. No
    convention for N_a(N, S) is needed, which the document does not give.
    """
    laws = jax.tree.map(lambda one, many: np.concatenate([[one], many]), law, resampled.laws)
    optima = []
    for sparsity in budget.levels:
        here = budget.sparsity == sparsity
        logs, tokens = np.log(budget.size[here]), np.log(budget.runs.design.tokens[here])
        if np.ptp(logs) == 0:
            continue
        low, high = logs.min(), logs.max()
        slope, offset = np.polyfit(logs, tokens, 1)
        with float64():
            best, losses = (np.asarray(one) for one in _lowest(laws, 1 - sparsity, slope, offset, low, high))
        ends = end(best, low, high)
        why = SIZE_ENDS.get(int(ends[0]), "").format(low=np.exp(low), high=np.exp(high))
        held = {"sparsity": sparsity}
        optima.append(optimum_of(budget.flops, held, np.exp(best), losses, ends == 0, why, level))
    return tuple(optima)


@jax.jit
def _lowest(laws: Any, share: Any, slope: Any, offset: Any, low: Any, high: Any) -> Any:
    """Log size of least loss, and that loss, of many laws."""

    def of(law: Sparsity) -> Any:
        def loss(log_total: Any) -> Any:
            tokens = jnp.exp(offset + slope * log_total)
            return law(Design(params_total=jnp.exp(log_total), tokens=tokens, num_experts=1 / share, top_k=1.0))

        best = argmin_between(loss, low, high)
        return best, loss(best)

    return jax.vmap(of)(laws)


PAPER = (2, 2, 2)
"""The degrees that Abnar et al. found best."""
LEAST_BUDGETS = 3
"""A line through two budgets has no interval."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """An optimum as a power of the budget, by least squares in logarithms."""

    what: str
    held: dict[str, float]
    budgets: int
    scale: float
    exponent: float
    low: float
    high: float
    """Ends of the exponent's interval, by Student's t."""

    def __str__(self) -> str:
        return f"{self.scale:.4g}·C^{self.exponent:.4f} [{self.low:.3f}, {self.high:.3f}], {self.budgets} budgets"

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        fitted = {"scale": self.scale, "exponent": self.exponent, "low": self.low, "high": self.high}
        return {"what": self.what, **self.held, "budgets": self.budgets, **fitted}


@dataclass(frozen=True, kw_only=True)
class Isoflops:
    """Surfaces over one kind of size and sparsity, one a budget, and what is optimal on them."""

    symbol: str
    """``N`` for total parameters, ``N_a`` for active ones."""
    degrees: DegreeSearch
    surfaces: tuple[Surface, ...]
    sizes: tuple[IsoflopOptimum, ...]
    """Best size at every sparsity, by the surfaces (Eq. 3)."""
    curves: tuple[IsoflopOptimum, ...]
    """The same by a parabola through each sparsity alone (D.4)."""
    by_law: tuple[IsoflopOptimum, ...]
    """The same by Eq. 6, if it was given."""
    sparsities: tuple[IsoflopOptimum, ...]
    """Best sparsity at round sizes (Eq. 4), if asked for."""
    pairs: tuple[tuple[IsoflopOptimum, IsoflopOptimum], ...]
    """Best size and sparsity together, one pair a budget (Eq. 2), if asked for."""
    trends: tuple[Trend, ...]

    @property
    def agreeing(self) -> tuple[int, int]:
        """At how many slices surface and curve are within each other's interval, of those where both have optima."""
        both = [pair for pair in self.side_by_side() if None not in (pair[0].value, pair[1].value)]
        return sum(_holds(one, other) and _holds(other, one) for one, other in both), len(both)

    def side_by_side(self) -> list[tuple[IsoflopOptimum, IsoflopOptimum]]:
        """Best sizes by surface and by curve, where both were looked for."""
        curves = at_slices(self.curves)
        return [(one, curves[key]) for key, one in at_slices(self.sizes).items() if key in curves]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        errors = [{"degrees": list(degrees), "rmse": rmse} for degrees, rmse in self.degrees.errors.items()]
        return {
            "symbol": self.symbol,
            "degrees": {"best": list(self.degrees.best), "rmse": self.degrees.error, "every": errors},
            "surfaces": [_surface(one) for one in self.surfaces],
            "sizes": [one.to_json() for one in self.sizes],
            "curves": [one.to_json() for one in self.curves],
            "by_law": [one.to_json() for one in self.by_law],
            "sparsities": [one.to_json() for one in self.sparsities],
            "pairs": [{"size": size.to_json(), "sparsity": sparsity.to_json()} for size, sparsity in self.pairs],
            "trends": [one.to_json() for one in self.trends],
        }


def analyse(
    symbol: str,
    budgets: Sequence[Budget],
    *,
    by_law: Sequence[IsoflopOptimum] = (),
    sparsities: bool = False,
    resamples: int = 100,
    seed: int = 0,
    level: float = 0.9,
    progress: Progress | None = None,
) -> Isoflops:
    """Choose degrees, fit every budget's surface and its resamples, and slice them.

    Args:
      symbol: what the budgets' sizes are, ``N`` or ``N_a``.
      by_law: best sizes by a law, to stand beside those of the surfaces.
      sparsities: whether to look for the best sparsity too. At a fixed N_a there is none to be expected: a sparser
        model then has more parameters at no cost.

    Raises:
      UserError: the runs are too few for any surface.
    """
    report = progress or (lambda *_: None)
    degrees = search_degrees(budgets, seed=seed, progress=progress)
    surfaces = fit_surfaces(budgets, degrees.best, resamples=resamples, seed=seed, level=level)
    every = np.concatenate([budget.size for budget in budgets])
    held = round_sizes(every.min(), every.max())
    sizes, curves, shares, pairs = [], [], [], []
    for number, surface in enumerate(surfaces):
        report(f"optima of {symbol}", number, len(surfaces))
        sizes += best_sizes(surface, level)
        curves += best_sizes_by_curves(surface.budget, level)
        if sparsities:
            shares += best_sparsities(surface, held, level)
            pairs.append(best_pair(surface, level))
    trends = [
        *_trends(f"{symbol}*", sizes, level),
        *_trends(f"{symbol}* (D.4)", curves, level),
        *_trends(f"{symbol}* (Eq. 6)", by_law, level),
        *_trends("1-S*", shares, level, of_share=True),
    ]
    return Isoflops(
        symbol=symbol,
        degrees=degrees,
        surfaces=surfaces,
        sizes=tuple(sizes),
        curves=tuple(curves),
        by_law=tuple(by_law),
        sparsities=tuple(shares),
        pairs=tuple(pairs),
        trends=tuple(trends),
    )


def at_slices(optima: Iterable[IsoflopOptimum]) -> dict[tuple[float, float], IsoflopOptimum]:
    """Best sizes by their budget and sparsity."""
    return {(one.flops, one.held["sparsity"]): one for one in optima}


def direction(optima: Iterable[IsoflopOptimum], held: str, what: str = "value") -> tuple[int, int, int]:
    """At how many budgets the optimum's ``what`` only rises with ``held``, only falls, and of how many it is known."""
    rising, falling, known = 0, 0, 0
    optima = list(optima)
    for flops in dict.fromkeys(one.flops for one in optima):
        line = [(one.held[held], getattr(one, what)) for one in optima if one.flops == flops and one.value is not None]
        steps = np.diff([value for _, value in sorted(line)])
        if len(steps):
            known, rising, falling = known + 1, rising + bool((steps > 0).all()), falling + bool((steps < 0).all())
    return rising, falling, known


def _trends(what: str, optima: Iterable[IsoflopOptimum], level: float, *, of_share: bool = False) -> list[Trend]:
    """A power law for everything that is held at enough budgets; runs that do not determine an optimum are left out."""
    lines: dict[tuple[str, float], list[IsoflopOptimum]] = {}
    for one in optima:
        if one.value is not None and one.determined:
            ((name, value),) = one.held.items()
            lines.setdefault((name, value), []).append(one)
    trends = []
    for (name, value), line in lines.items():
        if len(line) >= LEAST_BUDGETS:
            values = np.array([one.value for one in line], np.float64)
            flops = np.array([one.flops for one in line])
            scale, exponent, (low, high) = power_through(flops, 1 - values if of_share else values, level)
            fitted = {"scale": scale, "exponent": exponent, "low": low, "high": high}
            trends.append(Trend(what=what, held={name: value}, budgets=len(line), **fitted))
    return trends


def _holds(one: IsoflopOptimum, other: IsoflopOptimum) -> bool:
    return other.value is not None and one.low <= other.value <= one.high


def _surface(one: Surface) -> dict[str, Any]:
    ends = {
        name: {"low": finite(interval.low), "middle": finite(interval.middle), "high": finite(interval.high)}
        for name, interval in (("held_out_rmse", one.held_out_rmse), ("correlation", one.correlation))
    }
    law = {name: np.asarray(value).tolist() for name, value in coefficients(one.law).items()}
    return {"flops": one.budget.flops, "runs": len(one.budget.runs), "law": law, "rmse": one.rmse, **ends}
