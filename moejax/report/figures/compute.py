"""Draw loss against training compute: runs, a law's lowest loss at every budget with its interval, and a target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.uncertainty.estimates import intervals
from moejax.float64 import float64
from moejax.interval import in_percent
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design, Scalar, design_from, known, value_of
from moejax.laws.law import Law
from moejax.laws.search import argmin_between
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column
from moejax.report.figures.panels import FLOPS, LOSS, Panel, Series, figure
from moejax.report.figures.runs import EQUAL, range_of, split_into_classes
from moejax.report.figures.style import BLUE, INK, MUTED, classes
from moejax.result import size
from moejax.run_table import DataFrame

SIZES = ("params_active", "params_total", "params_embedding")
"""Fields that scale together along a budget."""
BUDGETS = 25
"""Number of budgets of a curve."""
REACH = 1e3
"""Factor by which model sizes on a curve may be above the runs' largest size or below their smallest."""
BEYOND = 10.0
"""Ratio of the last budget of a curve to the largest run's, if no target is given."""
DENSE = 1.02
"""Largest ratio of total to active parameters of a model that is labeled dense."""
RUN, CURVE, TARGET, CHOSEN = "run", "best", "target", "design"


@dataclass(frozen=True)
class _Family:
    label: str
    rows: np.ndarray
    """Indices of the family's runs."""
    like: dict[str, float]
    """Values of the typical run, whose proportions the curve keeps."""


@dataclass(frozen=True, eq=False)
class _Least:
    """A law's lowest loss at every budget, over sizes with the proportions of one family of models."""

    like: Mapping[str, float]
    """Values of the typical run."""
    sizes: Sequence[str]
    """Fields that scale together; without any, the loss depends on the budget alone."""
    main: str
    """Size field that is varied; its values are given as ratios to the typical run's."""
    counted: float
    """FLOPs per token, divided by the value of ``main``."""
    budgets: np.ndarray
    ratios: tuple[float, float]
    """Logarithms of the smallest and of the largest ratio."""

    def __call__(self, law: Law) -> Array:
        return jax.vmap(functools.partial(self._at, law))(jnp.asarray(self.budgets))

    def _at(self, law: Law, budget: Array) -> Array:
        if not self.sizes:
            return self._loss(law, budget, 0.0)
        still = jax.lax.stop_gradient(law)

        def loss(log_ratio: Scalar) -> Array:
            tried = self._loss(still, budget, log_ratio)
            return jnp.where(jnp.isnan(tried), jnp.inf, tried)

        # By the envelope theorem, the law's lowest loss has the law's derivatives at the constant optimum.
        return self._loss(law, budget, jax.lax.stop_gradient(argmin_between(loss, *self.ratios)))

    def _loss(self, law: Law, budget: Array, log_ratio: Scalar) -> Array:
        """Return the loss at a budget for a model whose sizes are multiples of the typical run's."""
        given: dict[str, Scalar] = {**self.like, "flops": budget}
        if self.sizes:
            given |= {name: self.like[name] * jnp.exp(log_ratio) for name in self.sizes}
            given["tokens"] = budget / (self.counted * given[self.main])
            if "unique_tokens" in self.like:
                # The family keeps its epochs.
                given["unique_tokens"] = given["unique_tokens"] * given["tokens"] / self.like["tokens"]
        return jnp.asarray(law(design_from(given)))


def compute_table(
    fit: FitResult | Law,
    design: Design | None = None,
    loss: np.ndarray | None = None,
    *,
    flops: float | None = None,
    level: float = 0.9,
    chosen: Design | None = None,
) -> pd.DataFrame:
    """Return a table of runs, curves, target and chosen design with columns kind, family, flops, loss, low, high, level
    and method.

    Runs are grouped into families by their ratio of total to active parameters. Each family has a curve: the law's
    lowest loss at each budget among models with the proportions of the family's typical run, with the interval of the
    fit.

    Args:
      fit: a fit, or a law without intervals.
      design: the runs, or the designs whose proportions the curves keep, as arrays.
      loss: measured losses of the runs; None if ``design`` holds no runs.
      flops: the target budget.
      chosen: the design to mark, with a curve of its proportions. Its FLOPs are counted as those of the runs: 6 per
        active parameter and token if the runs have no FLOPs.

    Raises:
      UserError: the law predicts no loss, or needs more than sizes, tokens and FLOPs to predict it.
    """
    law = fit.law if isinstance(fit, FitResult) else fit
    output = fit.output if isinstance(fit, FitResult) else next(iter(law.outputs))
    if output != "loss" or "num_layers" in law.inputs:
        raise UserError(
            f"The figure needs a law that predicts the loss from size and tokens, such as chinchilla; "
            f"{type(law).__name__} does not."
        )
    design = design or chosen or Design()
    values = _values(design)
    if missing := [name for name in law.inputs if name not in values and value_of(design, name) is None]:
        raise UserError(f"The runs have no {', '.join(missing)}, which the law reads; give a table with these columns.")
    spent = _spent(values)
    last = max(flops or 0.0, spent.max() * (1.0 if flops else BEYOND))
    budgets = np.geomspace(spent.min() if loss is not None else last / 1e6, last, BUDGETS)
    rows = []
    families = _families(values, spent) if loss is not None or chosen is None else []
    for family in families:
        if loss is not None:
            rows += [
                {"kind": RUN, "family": family.label, "flops": spent[i], **_ends(float(loss[i]), np.nan, np.nan)}
                for i in family.rows
            ]
        rows += _curve(fit, law, _least(values, family, budgets), family.label, level)
    if chosen is not None:
        own = {name: one for name, one in _values(chosen).items() if name != "flops" or name in values}
        (family,) = _families(own, _spent(own))
        if family.label not in (one.label for one in families):
            rows += _curve(fit, law, _least(own, family, budgets), family.label, level)
        (ends,) = zip(*_with_interval(fit, law, lambda law: jnp.atleast_1d(law(chosen)), level), strict=True)
        at = {"flops": float(_spent(own)[0]), "flops_of_design": float(_spent(_values(chosen))[0])}
        rows.append({"kind": CHOSEN, "family": _sizes(own), **at, **_ends(*ends)})
    if flops:
        rows.append({"kind": TARGET, "family": "", "flops": flops, **_ends(np.nan, np.nan, np.nan)})
    return pd.DataFrame(rows).assign(level=level, method=fit.method if isinstance(fit, FitResult) else "")


def _values(design: Design) -> dict[str, np.ndarray]:
    return {name: np.atleast_1d(np.asarray(one, np.float64)) for name, one in known(design).items()}


def _sizes(values: Mapping[str, np.ndarray]) -> str:
    """Return the sizes of a design in words: 1.11B active, 24.7B total."""
    words = {"params_active": "active", "params_total": "total"}
    written = {name: f"{size(float(values[name][0]), 3)} {word}" for name, word in words.items() if name in values}
    if len(written) > 1 and values["params_total"][0] <= DENSE * values["params_active"][0]:
        return f"{size(float(values['params_total'][0]), 3)}, dense"
    return ", ".join(written.values())


def _curve(fit: FitResult | Law, law: Law, least: _Least, family: str, level: float) -> list[dict[str, str | float]]:
    every = zip(least.budgets, *_with_interval(fit, law, least, level), strict=True)
    return [{"kind": CURVE, "family": family, "flops": budget, **_ends(*ends)} for budget, *ends in every]


def _ends(loss: float, low: float, high: float) -> dict[str, float]:
    return {"loss": loss, "low": low, "high": high}


def _with_interval(
    fit: FitResult | Law, law: Law, least: Callable[[Law], Array], level: float
) -> tuple[np.ndarray, ...]:
    if isinstance(fit, FitResult) and fit.uncertainty is not None:
        return intervals(fit, least, level)[:3]
    with float64():
        middle = np.asarray(least(law), np.float64)
    return middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan)


def _spent(values: dict[str, np.ndarray]) -> np.ndarray:
    """Return the FLOPs of runs: the table's FLOPs, or else 6 per active parameter and token."""
    if "flops" in values:
        return values["flops"]
    active = values.get("params_active", values.get("params_total"))
    if active is None or "tokens" not in values:
        raise UserError(
            "The table does not determine the compute of the runs; add a column flops, or params_active and tokens."
        )
    return FLOPS_PER_PARAM_AND_TOKEN * active * values["tokens"]


def _families(values: dict[str, np.ndarray], spent: np.ndarray) -> list[_Family]:
    """Group runs by total / active parameters. A family's typical run is the largest run of its middle level."""
    ratio = np.ones(len(spent))
    if {"params_total", "params_active"} <= {*values}:
        ratio = values["params_total"] / values["params_active"]
    families = []
    for own in split_into_classes(np.unique(ratio)):
        rows = np.flatnonzero((ratio >= own[0][0]) & (ratio <= own[-1][-1]))
        middle = own[len(own) // 2]
        (inside,) = np.nonzero((ratio >= middle[0]) & (ratio <= middle[-1]))
        like = inside[np.argmax(spent[inside])]
        words = "dense" if own[-1][-1] <= DENSE else f"total/active {range_of(own)}"
        families.append(_Family(words, rows, {name: float(one[like]) for name, one in values.items()}))
    return families


def _least(values: dict[str, np.ndarray], family: _Family, budgets: np.ndarray) -> _Least:
    like, sizes = family.like, [name for name in SIZES if name in values]
    main = "params_active" if "params_active" in like else "params_total"
    # FLOPs counted layer by layer are a multiple of 6·N·D; the curve keeps the run's multiple.
    counted = FLOPS_PER_PARAM_AND_TOKEN
    if {"flops", "tokens"} <= {*like} and sizes:
        counted = like["flops"] / (like[main] * like["tokens"])
    ratios = (0.0, 0.0)
    if sizes:
        smallest, largest = values[main].min() / REACH, values[main].max() * REACH
        ratios = (math.log(smallest / like[main]), math.log(largest / like[main]))
    return _Least(like, sizes, main, counted, budgets, ratios)


def loss_vs_compute(inputs: FigureInputs) -> Figure:
    """Draw the table of ``compute_table``: points, curves with bands, and the target budget as a dotted line."""
    table = inputs.table
    curves, runs, chosen = (table[table["kind"] == kind] for kind in (CURVE, RUN, CHOSEN))
    families = list(dict.fromkeys(curves["family"]))
    lost, banded = False, False
    # Curves are drawn after all points, so that points do not hide them.
    points_of, lines_of = list[Series](), list[Series]()
    alike = len(families) > 1 and _same_curves(curves, families)
    level = in_percent(float(table["level"].iloc[0])) if "level" in table else ""
    for family, color in zip(families, classes(len(families)), strict=True):
        points, line = runs[runs["family"] == family], curves[curves["family"] == family].sort_values("flops")
        low, high = (column(line, name) if name in line else np.full(len(line), np.nan) for name in ("low", "high"))
        lost |= bool(np.isnan(low).any())
        banded |= not np.isnan(low).all()
        if len(points):
            x, y = column(points, "flops"), column(points, "loss")
            points_of.append(Series(label=family, x=x, y=y, mark="points", color=color))
        if alike and family != families[-1]:
            continue
        lines_of.append(
            Series(
                label=f"{'all families' if alike else family}, lowest loss",
                x=column(line, "flops"),
                y=column(line, "loss"),
                low=low,
                high=high,
                mark="dashed" if np.isnan(low).all() else "line",
                color=INK if alike else color,
                width=1.1,
                in_legend=not len(points),
            )
        )
    series = points_of + lines_of
    color = INK if alike else MUTED if len(families) > 1 else BLUE
    mark = "line" if banded else "dashed"
    legend = [Series(label="lowest loss by the law", x=[], y=[], mark=mark, color=color)] if len(runs) else []
    if banded and level:
        legend.append(Series(label=f"{level} interval", x=[], y=[], mark="band", color=color))
    top, bottom = _view(pd.concat([runs, chosen]), curves)
    for flops in column(table[table["kind"] == TARGET], "flops"):
        label = f"target, {short(flops, 3)} FLOPs"
        series.append(Series(label=label, x=[flops, flops], y=[bottom, top], mark="dotted", color=INK))
    for label, own in chosen.groupby("family"):
        low, high = (column(own, name) if name in own else None for name in ("low", "high"))
        x, y = column(own, "flops"), column(own, "loss")
        series.append(Series(label=f"design: {label}", x=x, y=y, low=low, high=high, mark="stars", color=INK))
    method = str(table["method"].iloc[0]) if "method" in table else ""
    bands = f"{level} intervals, {method}".strip(" ,")
    band = f"Bands are {bands}." + (" Dashed lines have none." if lost else "")
    if not banded:
        band = "There are no intervals: lines are dashed."
    if alike:
        band = f"The law gives all families the same line. {band}"
    said = (
        "A line shows the law's lowest loss at each budget: the size varies with the proportions of the family's "
        f"typical run, and the remaining budget gives the tokens. {band} A run lies above its line because its size is "
        f"not optimal, or because of noise.{_about(chosen, level)}"
    )
    return figure(
        "Loss against compute, with the law",
        said + inputs.whose,
        [Panel(x=FLOPS, y=replace(LOSS, scale="log"), series=series, ylim=(bottom, top), legend=legend)],
        columns=1,
        height=3.6,
    )


def _about(chosen: DataFrame, level: str) -> str:
    """Return the caption sentences about the design."""
    if not len(chosen):
        return ""
    interval = f" with its {level} interval" if level and chosen["low"].notna().any() else ""
    drawn, own = (float(column(chosen, name)[0]) for name in ("flops", "flops_of_design"))
    counted = "."
    if not math.isclose(drawn, own, rel_tol=EQUAL):
        counted = f", at 6·N·D = {short(drawn, 3)} FLOPs like the runs; counted layer by layer, it has {short(own, 3)}."
    return f" The star is the design{interval}{counted} The line of its ratio keeps its proportions."


def _same_curves(curves: DataFrame, families: list[str]) -> bool:
    """Return whether all families have the same curve, because the law does not read what distinguishes them."""
    first, *others = (column(curves[curves["family"] == one].sort_values("flops"), "loss") for one in families)
    return all(len(one) == len(first) and np.allclose(one, first, rtol=1e-3) for one in others)


def _view(runs: DataFrame, curves: DataFrame) -> tuple[float, float]:
    """Return the limits of the loss axis. They include all runs and curves, and bands up to half of the distance
    between the limits beyond them."""
    losses = np.concatenate([column(runs, "loss"), column(curves, "loss")])
    losses = losses[np.isfinite(losses)]
    low, high, room = losses.min(), losses.max(), 0.5 * (np.ptp(losses) or 0.1)
    if "low" in curves and curves["low"].notna().any():
        low = min(low, max(float(curves["low"].min()), low - room))
        high = max(high, min(float(curves["high"].max()), high + room))
    margin = 1 + 0.03 * (high / low - 1)
    return float(high * margin), float(low / margin)
