"""Analyse IsoFLOP surfaces.

Choose the polynomial degrees, compare the optima of surfaces, parabolas and a law, and fit trends of the optima.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moejax.fit.search.fit_law import Progress
from moejax.fit.sweeps.budget_losses import end
from moejax.fit.uncertainty.bootstrap import Bootstrap
from moejax.float64 import float64
from moejax.json_text import finite
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.laws.mixtures.sparsity import Sparsity
from moejax.laws.search import argmin_between
from moejax.papers.abnar.isoflop_budgets import Budget, best_sizes_by_curves
from moejax.papers.abnar.isoflop_surfaces import (
    FOLDS,
    DegreeSearch,
    Surface,
    best_pair,
    best_sizes,
    best_sparsities,
    fit_surfaces,
    round_sizes,
    search_degrees,
)
from moejax.papers.isoflop_optima import SIZE_ENDS, IsoflopOptimum, Trend, optimum_of, trends_of
from moejax.result import Column, Table


def best_sizes_by_law(
    law: Sparsity, resampled: Bootstrap, budget: Budget, level: float = 0.9
) -> tuple[IsoflopOptimum, ...]:
    """Return N* of Eq. 6 at every sparsity that was trained at several sizes, within the range of these sizes.

    The tokens at each size come from a power law in N, fitted to the table's runs of that sparsity. This avoids a
    convention for N_a(N, S), which the paper does not give.
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
    """Return the log size that minimizes the loss, and that loss, for many laws."""

    def of(law: Sparsity) -> Any:
        def loss(log_total: Any) -> Any:
            tokens = jnp.exp(offset + slope * log_total)
            return law(Design(params_total=jnp.exp(log_total), tokens=tokens, num_experts=1 / share, top_k=1.0))

        best = argmin_between(loss, low, high)
        return best, loss(best)

    return jax.vmap(of)(laws)


PAPER = (2, 2, 2)
"""Best degrees according to Abnar et al."""
BUDGET = Column("budget", ".3g")


@dataclass(frozen=True, kw_only=True)
class Isoflops:
    """IsoFLOP surfaces over sparsity and total or active parameters, one per budget, and their optima."""

    symbol: str
    """``N`` for total parameters, ``N_a`` for active parameters."""
    degrees: DegreeSearch
    surfaces: tuple[Surface, ...]
    sizes: tuple[IsoflopOptimum, ...]
    """Best size at every sparsity, from the surfaces (Eq. 3)."""
    curves: tuple[IsoflopOptimum, ...]
    """Best size at every sparsity, from a parabola per sparsity (D.4)."""
    by_law: tuple[IsoflopOptimum, ...]
    """Best size at every sparsity from Eq. 6, if given."""
    sparsities: tuple[IsoflopOptimum, ...]
    """Best sparsity at round sizes (Eq. 4), if requested."""
    pairs: tuple[tuple[IsoflopOptimum, IsoflopOptimum], ...]
    """Best size and sparsity together, one pair per budget (Eq. 2), if requested."""
    trends: tuple[Trend, ...]

    @property
    def agreeing(self) -> tuple[int, int]:
        """Number of slices whose two optima are within each other's interval, and number of slices with both optima."""
        both = [pair for pair in self.side_by_side() if None not in (pair[0].value, pair[1].value)]
        return sum(_holds(one, other) and _holds(other, one) for one, other in both), len(both)

    def side_by_side(self) -> list[tuple[IsoflopOptimum, IsoflopOptimum]]:
        """Return the best sizes from surface and curve at slices that have both."""
        curves = at_slices(self.curves)
        return [(one, curves[key]) for key, one in at_slices(self.sizes).items() if key in curves]

    def tables(self) -> list[Table]:
        """Return tables of surfaces, optima and trends over budgets; optima have intervals, or reasons why they are
        missing."""
        every = (self._surfaces(), self._sizes(), self._sparsities(), self._pairs(), self._trends())
        return [one for one in every if one.rows]

    def _surfaces(self) -> Table:
        search, symbol = self.degrees, self.symbol
        paper = search.errors.get(PAPER)
        error = f"RMSE of {FOLDS}-fold cross-validation {search.error:.5f} nats, the lowest of {len(search.errors)}"
        beside = "" if search.best == PAPER or paper is None else f"; the paper's {PAPER} {paper:.5f}"
        columns = (
            BUDGET,
            Column("runs"),
            Column("RMSE", ".5f"),
            Column("held out", ".5f"),
            Column("Pearson on held-out runs", lambda ends: f"{ends.middle:.4f} [{ends.low:.4f}, {ends.high:.4f}]"),
        )
        return Table(
            f"IsoFLOP surfaces over {symbol} and S: degrees {search.best} of log {symbol}, log 1/(1-S) and their "
            f"product",
            columns,
            [
                [one.budget.flops, len(one.budget.runs), one.rmse, one.held_out_rmse.middle, one.correlation]
                for one in self.surfaces
            ],
            [f"{error}{beside}"],
        )

    def _sizes(self) -> Table:
        star = f"{self.symbol}*"
        curves, laws = at_slices(self.curves), at_slices(self.by_law)
        columns = (
            BUDGET,
            Column("S", ".4g"),
            Column(f"{star} by the surface", str, words=True),
            Column("loss", ".4f"),
            Column("by its own parabola (D.4)", str, words=True),
            Column("by Eq. 6", str, words=True),
        )
        rows = [
            [*key, one, one.loss, curves.get(key, "none"), laws.get(key, "")]
            for key, one in at_slices(self.sizes).items()
        ]
        agreeing, both = self.agreeing
        notes = [f"the optima by surface and parabola are within each other's interval at {agreeing} of {both} slices"]
        if agreeing < both / 2:
            notes.append(
                f"! fewer than half: the surface does not follow the runs' curvature; prefer the parabolas' {star}"
            )
        for what, name in ((star, "value"), (f"the loss at {star}", "loss")):
            rising, falling, known = direction(self.sizes, "sparsity", name)
            notes.append(f"{what} rises with S at {rising} and falls at {falling} of {known} budgets")
        every = ((star, self.sizes), (f"{star} (D.4)", self.curves), (f"{star} (Eq. 6)", self.by_law))
        for what, optima in every:
            missing = [one for one in optima if one.why]
            notes += [f"no {what} at {one.flops:.3g} FLOPs and {self._held(one)}: {one.why}" for one in missing]
        return Table(f"Best {self.symbol} at every sparsity", columns, rows, notes)

    def _sparsities(self) -> Table:
        rising, falling, known = direction(self.sparsities, "params_total")
        return Table(
            "Best sparsity at round sizes",
            (BUDGET, Column(self.symbol, ".3g"), Column("S* by the surface", _or_why, words=True)),
            [[one.flops, one.held["params_total"], one] for one in self.sparsities],
            [f"S* rises with {self.symbol} at {rising} and falls at {falling} of {known} budgets"],
        )

    def _pairs(self) -> Table:
        return Table(
            f"{self.symbol}* and S* at once (Eq. 2)",
            (BUDGET, Column(f"{self.symbol}*", _or_why, words=True), Column("S*", str, words=True)),
            [[size.flops, size, sparsity] for size, sparsity in self.pairs],
        )

    def _trends(self) -> Table:
        rows = [[one.what, self._held(one), one] for one in self.trends]
        columns = (Column(""), Column("at", words=True), Column("power of the budget", str, words=True))
        return Table("Over budgets", columns, rows or [["no optimum is determined at three budgets", None, None]])

    def _held(self, one: IsoflopOptimum | Trend) -> str:
        """Return the fixed quantity of an optimum as text: ``S = 0.9``, ``N = 1e+09``."""
        ((name, value),) = one.held.items()
        return f"{'S' if name == 'sparsity' else self.symbol} = {value:.4g}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name."""
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
    """Choose degrees, fit every budget's surface and its resamples, and compute the optima of slices.

    Args:
      symbol: symbol of the budgets' sizes, ``N`` or ``N_a``.
      by_law: best sizes from a law, to compare with the surfaces' best sizes.
      sparsities: True to compute the best sparsity too. Expect no optimum at a fixed N_a, because a sparser model has
        more parameters at no cost.

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
        *trends_of(f"{symbol}*", sizes, level),
        *trends_of(f"{symbol}* (D.4)", curves, level),
        *trends_of(f"{symbol}* (Eq. 6)", by_law, level),
        *trends_of("1-S*", shares, level, of_share=True),
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
    """Index best sizes by budget and sparsity."""
    return {(one.flops, one.held["sparsity"]): one for one in optima}


def direction(optima: Iterable[IsoflopOptimum], held: str, what: str = "value") -> tuple[int, int, int]:
    """Count the budgets at which the optima's ``what`` only rises with ``held``, only falls, and has at least two
    values."""
    rising, falling, known = 0, 0, 0
    optima = list(optima)
    for flops in dict.fromkeys(one.flops for one in optima):
        line = [(one.held[held], getattr(one, what)) for one in optima if one.flops == flops and one.value is not None]
        steps = np.diff([value for _, value in sorted(line)])
        if len(steps):
            known, rising, falling = known + 1, rising + bool((steps > 0).all()), falling + bool((steps < 0).all())
    return rising, falling, known


def _or_why(one: IsoflopOptimum) -> str:
    return f"none: {one.why}" if one.why else str(one)


def _holds(one: IsoflopOptimum, other: IsoflopOptimum) -> bool:
    return other.value is not None and one.low <= other.value <= one.high


def _surface(one: Surface) -> dict[str, Any]:
    ends = {
        name: {"low": finite(interval.low), "middle": finite(interval.middle), "high": finite(interval.high)}
        for name, interval in (("held_out_rmse", one.held_out_rmse), ("correlation", one.correlation))
    }
    law = {name: np.asarray(value).tolist() for name, value in coefficients(one.law).items()}
    return {"flops": one.budget.flops, "runs": len(one.budget.runs), "law": law, "rmse": one.rmse, **ends}
