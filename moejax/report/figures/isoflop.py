"""Draw IsoFLOP curves of a table and a fit, and the efficiency leverage of each group of runs by the fit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs, budgets
from moejax.float64 import float64
from moejax.interval import in_percent
from moejax.laws.law import Law
from moejax.quantities import short
from moejax.report.figures.compute import (
    ACCORDING_TO_DECISIONS,
    CURVE,
    RUN,
    CurveFamily,
    LowestLoss,
    as_decided,
    convention_of,
    families_of,
    interval_in,
    least_of,
    loss_law_of,
    method_of,
    spent_on,
    with_interval,
)
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.groups import MEANING
from moejax.report.figures.panels import ACTIVE, EXPANSION, FLOPS, LOSS, TOTAL, Axis, Panel, Series, figure
from moejax.report.figures.style import INK, classes

MINIMUM = "minimum"
LEVERAGE = Axis("leverage", "efficiency leverage")
PANELS = 9
"""Maximum number of budgets with a panel."""
POINTS = 61
MARGIN = 1.6
"""Factor by which curves extend beyond the runs and the minimum."""
AROUND = 2.0
"""Ratio of the largest size to the minimum on a curve without runs, before the margin."""
SAME_BUDGET = 0.05
"""Relative difference within which a target is a budget of the runs."""
FAR = 10.0
"""Largest factor by which a minimum outside the trained sizes extends a curve."""


def isoflop_table(fit: FitResult | Law, runs: Runs, *, flops: float | None = None) -> pd.DataFrame:
    """Return a table of runs, IsoFLOP curves and their minima with columns kind, family, budget, size and loss.

    Runs are grouped into compute budgets and into families by expansion. A family's curve keeps the proportions of its
    typical run, and the remaining budget gives the tokens.

    Args:
      flops: a target budget, which has curves without runs.

    Raises:
      UserError: the law does not predict the loss from sizes and tokens, the runs have no sizes, or no budget has two
        sizes of a family.
    """
    runs = runs.where(runs.weight > 0)
    law, values = loss_law_of(fit, runs.design)
    size = next((name for name in (ACTIVE.column, TOTAL.column) if name in values), None)
    if size is None:
        raise UserError("The runs have no sizes; add a column params_active or params_total.")
    spent = spent_on(values)
    number, means = budgets(spent)
    close = flops is not None and np.isclose(means, flops, rtol=SAME_BUDGET).any()
    target = [] if flops is None or close else [flops]
    means = np.append(means, target)
    rows = []
    for family in families_of(values, spent):
        curve = _curve_of(law, least_of(values, family, means))
        for budget in np.unique(number[family.rows]):
            own = family.rows[number[family.rows] == budget]
            head = {"family": family.label, "budget": float(means[budget])}
            sizes = values[size][own]
            rows += [{"kind": RUN, **head, size: float(values[size][i]), "loss": float(runs.loss[i])} for i in own]
            if len(np.unique(sizes)) > 1:
                rows += [{"kind": kind, **head, size: x, "loss": y} for kind, x, y in curve(int(budget), sizes)]
        for budget in target:
            head = {"family": family.label, "budget": budget}
            rows += [{"kind": kind, **head, size: x, "loss": y} for kind, x, y in curve(len(means) - 1, None)]
    if all(row["kind"] != CURVE or row["budget"] == flops for row in rows):
        raise UserError(
            "No compute budget has two sizes of models with equal expansion, so there are no IsoFLOP curves; "
            "loss-vs-compute shows the runs."
        )
    return pd.DataFrame(rows)


def _curve_of(law: Law, least: LowestLoss) -> Callable[[int, np.ndarray | None], list[tuple[str, float, float]]]:
    """Return a function that computes the curve at a budget over the sizes of runs, or around the minimum."""
    losses = jax.jit(jax.vmap(least.loss, (None, None, 0)))
    with float64():
        best = np.asarray(jax.vmap(lambda budget: least.best(law, budget))(jnp.asarray(least.budgets)), np.float64)
    typical = least.like[least.main]

    def curve(budget: int, sizes: np.ndarray | None) -> list[tuple[str, float, float]]:
        low, high = best[budget] - np.log(AROUND), best[budget] + np.log(AROUND)
        if sizes is not None:
            low, high = np.log(sizes.min() / typical), np.log(sizes.max() / typical)
        inside = low - np.log(FAR) < best[budget] < high + np.log(FAR)
        ends = (min(low, best[budget]), max(high, best[budget])) if inside else (low, high)
        ratios = np.linspace(ends[0] - np.log(MARGIN), ends[1] + np.log(MARGIN), POINTS)
        with float64():
            at = jnp.asarray(least.budgets[budget])
            every = np.asarray(losses(law, at, jnp.asarray([*ratios, best[budget]])), np.float64)
        points = zip(typical * np.exp(ratios), every[:-1], strict=True)
        minimum = [(MINIMUM, float(typical * np.exp(best[budget])), float(every[-1]))]
        return [(CURVE, float(x), float(y)) for x, y in points] + minimum * bool(inside)

    return curve


def isoflop(inputs: FigureInputs) -> Figure:
    """Draw the table of ``isoflop_table``: a panel per compute budget with points, curves and minima of families."""
    table = inputs.table
    size = TOTAL if TOTAL.column in table and ACTIVE.column not in table else ACTIVE
    families = list(dict.fromkeys(table["family"]))
    colors = dict(zip(families, classes(len(families)), strict=True))
    every = np.unique(column(table[table["kind"] == CURVE], "budget"))
    shown = every[np.unique(np.linspace(0, len(every) - 1, PANELS).astype(int))]
    panels = [_panel(table[table["budget"] == budget], colors, size) for budget in shown]
    legend = [Series(label=family, x=[], y=[], mark="joined", color=color) for family, color in colors.items()]
    panels[0] = replace(panels[0], legend=legend)
    some = f" {len(shown)} of {len(every)} budgets with several sizes are shown." if len(shown) < len(every) else ""
    named = f" {MEANING}" * any(str(family).startswith("expansion") for family in families)
    return figure(
        "IsoFLOP curves",
        "Loss against size at each compute budget: runs as points, the law as lines with a star at the lowest loss. A "
        "line keeps the proportions of its group's typical run; the remaining budget gives the tokens. A minimum far "
        f"outside the trained sizes has no star.{some}{named}{inputs.whose}",
        panels,
        columns=min(3, len(panels)) if len(panels) != 4 else 2,
        height=2.6,
    )


def _panel(own: pd.DataFrame, colors: dict[str, str], size: Axis) -> Panel:
    series = []
    for kind, mark in ((CURVE, "line"), (RUN, "points"), (MINIMUM, "stars")):
        for family, rows in own[own["kind"] == kind].groupby("family", sort=False):
            label, color = str(family), colors[str(family)]
            if kind == MINIMUM:
                label, color = "lowest loss by the law", INK
            x, y = column(rows, size.column), column(rows, "loss")
            series.append(Series(label=label, x=x, y=y, mark=mark, color=color, in_legend=kind == MINIMUM))
    budget = float(own["budget"].iloc[0])
    target = ", target" * (RUN not in set(own["kind"]))
    return Panel(x=size, y=LOSS, series=series, title=f"{short(budget, 2)} FLOPs{target}")


BUDGETS = 7
"""Number of budgets of a leverage curve."""
STEPS = 12
"""Steps of the bisection of the logarithm of the FLOPs, before a step of Newton's method."""
REACH = 1e4
"""Largest leverage."""


def leverage_table(fit: FitResult | Law, runs: Runs, *, flops: float | None = None, level: float = 0.9) -> pd.DataFrame:
    """Return the efficiency leverage of each family over the least expanded one, by budget and with intervals, in
    columns family, over, expansion, flops, leverage, low, high, level and method.

    Args:
      flops: the largest budget; by default that of the runs.
      level: coverage of the intervals.

    Raises:
      UserError: the law does not predict the loss from sizes and tokens, or does not distinguish the runs by expansion.
    """
    runs = runs.where(runs.weight > 0)
    law, every = loss_law_of(fit, runs.design)
    values = as_decided(law, every)
    spent = spent_on(values)
    base, *others = families_of(values, spent)
    if not others or "params_total" not in values:
        raise UserError("All runs have the same total / active parameters (expansion), so there is no leverage.")
    convention = ACCORDING_TO_DECISIONS if "flops" in every and "flops" not in values else ""
    along = np.geomspace(spent.min(), max(flops or 0.0, spent.max()), BUDGETS)
    parts = [pd.DataFrame({"family": base.label, "expansion": _expansion(base), "flops": along, "leverage": 1.0})]
    for family in others:
        functional = _Leverage(least_of(values, family, along), least_of(values, base, along))
        middle, low, high = with_interval(fit, law, functional, level)
        if np.allclose(middle, 1.0, rtol=1e-3):
            continue
        head = {"family": family.label, "expansion": _expansion(family)}
        parts.append(pd.DataFrame({**head, "flops": along, "leverage": middle, "low": low, "high": high}))
    if len(parts) == 1:
        raise UserError(
            f"{type(law).__name__} does not distinguish models by expansion, so there is no leverage; fit a law that "
            "reads params_total or experts, such as effective_params."
        )
    table = pd.concat(parts, ignore_index=True)
    return table.assign(over=base.label, level=level, method=method_of(fit), convention=convention)


def _expansion(family: CurveFamily) -> float:
    return family.like["params_total"] / family.like["params_active"]


@dataclass(frozen=True, eq=False)
class _Leverage:
    """FLOPs of the best model of one family per FLOP of the best model of another, at equal loss."""

    family: LowestLoss
    base: LowestLoss

    def __call__(self, law: Law) -> Array:
        return jax.vmap(functools.partial(self._at, law))(jnp.asarray(self.family.budgets))

    def _at(self, law: Law, budget: Array) -> Array:
        reached, still = self.family.at(law, budget), jax.lax.stop_gradient(law)
        aim, start = jax.lax.stop_gradient(reached), jnp.log(budget)

        def halved(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = ends
            middle = (low + high) / 2
            is_above = self.base.at(still, jnp.exp(middle)) > aim
            return jnp.where(is_above, middle, low), jnp.where(is_above, high, middle)

        far = jnp.log(REACH)
        low, high = jax.lax.fori_loop(0, STEPS, halved, (start - far, start + far))
        found = jax.lax.stop_gradient((low + high) / 2)
        # A step of Newton's method from the solution gives its derivatives by the coefficients.
        slope = jax.lax.stop_gradient(jax.grad(lambda log: self.base.at(still, jnp.exp(log)))(found))
        log = found - (self.base.at(law, jnp.exp(found)) - reached) / slope
        solved = jnp.abs(found - start) < far - 1e-6
        return jnp.where(solved, jnp.exp(log - start), jnp.nan)


def leverage(inputs: FigureInputs) -> Figure:
    """Draw the table of ``leverage_table``: leverage over compute, and over expansion at the largest budget."""
    table = inputs.table
    families, over = list(dict.fromkeys(table["family"])), str(table["over"].iloc[0])
    level = in_percent(float(table["level"].iloc[0])) if "level" in table else ""
    series, ends, legend = list[Series](), list[Series](), list[Series]()
    for family, color in zip(families, classes(len(families)), strict=True):
        own = table[table["family"] == family].sort_values("flops")
        low, high = interval_in(own)
        x, y = column(own, "flops"), column(own, LEVERAGE.column)
        series.append(Series(label=family, x=x, y=y, low=low, high=high, color=color, in_legend=False))
        x = column(own, "expansion")
        ends.append(replace(series[-1], x=x[-1:], y=y[-1:], low=low[-1:], high=high[-1:], mark="points"))
        legend.append(Series(label=family, x=[], y=[], mark="joined", color=color))
    largest = float(table["flops"].max())
    panels = [
        Panel(x=FLOPS, y=LEVERAGE, series=series, title="Over compute", legend=legend),
        Panel(x=EXPANSION, y=LEVERAGE, series=ends, title=f"At {short(largest, 2)} FLOPs"),
    ]
    method = str(table["method"].iloc[0]) if "method" in table else ""
    banded = bool(np.isfinite(np.concatenate([interval_in(table)[0]])).any())
    bands = f" Bands and bars are {level} intervals, {method}.".replace(", .", ".") * banded
    return figure(
        "Efficiency leverage",
        f"FLOPs of the best {over} model at equal loss, divided by the budget, by the law. Every group has its "
        f"optimal size, with the proportions of its typical run.{bands} {MEANING}{convention_of(table)}{inputs.whose}",
        panels,
        columns=2,
        height=3.0,
    )
