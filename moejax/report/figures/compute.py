"""Draw loss against training compute: runs, a law's lowest loss at every budget with its interval, and a target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from moejax.report.figures.groups import DENSE, EQUAL, MEANING, groups_of
from moejax.report.figures.panels import FLOPS, LOSS, Panel, Series, figure
from moejax.report.figures.style import INK, MUTED, classes
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
ACCORDING_TO_DECISIONS = "FLOPs are 6 per active parameter and token, as in the fit's decisions."
"""Caption sentence if the table has FLOPs of its own."""
NEAR = 0.05
"""Relative difference of expansion within which a design has no curve of its own beside a family's."""
RUN, CURVE, TARGET, CHOSEN = "run", "best", "target", "design"


@dataclass(frozen=True)
class CurveFamily:
    """Runs with about the same expansion."""

    label: str
    rows: np.ndarray
    """Indices of the family's runs."""
    like: dict[str, float]
    """Values of the typical run, whose proportions the curve keeps."""


@dataclass(frozen=True, eq=False)
class LowestLoss:
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
        return jax.vmap(functools.partial(self.at, law))(jnp.asarray(self.budgets))

    def at(self, law: Law, budget: Array) -> Array:
        """Return the lowest loss at a budget."""
        if not self.sizes:
            return self.loss(law, budget, 0.0)
        still = jax.lax.stop_gradient(law)

        # By the envelope theorem, the law's lowest loss has the law's derivatives at the constant optimum.
        return self.loss(law, budget, self.best(still, budget))

    def best(self, law: Law, budget: Array) -> Array:
        """Return the logarithm of the ratio with the lowest loss at a budget, as a constant."""

        def loss(log_ratio: Scalar) -> Array:
            tried = self.loss(law, budget, log_ratio)
            return jnp.where(jnp.isnan(tried), jnp.inf, tried)

        return jax.lax.stop_gradient(argmin_between(loss, *self.ratios))

    def loss(self, law: Law, budget: Array, log_ratio: Scalar) -> Array:
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
    chosen_loss: tuple[float, float, float] | None = None,
) -> pd.DataFrame:
    """Return a table of runs, curves, target and chosen design with columns kind, family, flops, loss, low, high, level
    and method.

    Runs are grouped into families by expansion (total / active parameters). Each family has a curve: the law's
    lowest loss at each budget among models with the proportions of the family's typical run, with the interval of the
    fit.

    Args:
      fit: a fit, or a law without intervals.
      design: the runs, or the designs whose proportions the curves keep, as arrays.
      loss: measured losses of the runs; None if ``design`` holds no runs.
      flops: the target budget.
      chosen: the design to mark, with a curve of its proportions. Its FLOPs are counted as those of the runs: 6 per
        active parameter and token if the runs have no FLOPs.
      chosen_loss: loss of ``chosen`` with both ends of its interval; by default the prediction for this design.

    Raises:
      UserError: the law predicts no loss, or needs more than sizes, tokens and FLOPs to predict it.
    """
    design = design or chosen or Design()
    law, every = loss_law_of(fit, design)
    values = as_decided(law, every)
    spent = spent_on(values)
    last = max(flops or 0.0, spent.max() * (1.0 if flops else BEYOND))
    budgets = np.geomspace(spent.min() if loss is not None else last / 1e6, last, BUDGETS)
    rows = []
    families = families_of(values, spent) if loss is not None or chosen is None else []
    for family in families:
        if loss is not None:
            rows += [
                {"kind": RUN, "family": family.label, "flops": spent[i], **_ends(float(loss[i]), np.nan, np.nan)}
                for i in family.rows
            ]
        rows += _curve(fit, law, least_of(values, family, budgets), family.label, level, flops)
    if chosen is not None:
        own = {name: one for name, one in values_of(chosen).items() if name != "flops" or name in values}
        (family,) = families_of(own, spent_on(own))
        if all(abs(_expansion(family) / _expansion(one) - 1) > NEAR for one in families):
            # Runs have their own predictions at the target.
            rows += _curve(fit, law, least_of(own, family, budgets), family.label, level, None if families else flops)
        if chosen_loss is None:
            middle, low, high = with_interval(fit, law, lambda law: jnp.atleast_1d(law(chosen)), level)
            chosen_loss = float(middle[0]), float(low[0]), float(high[0])
        at = {"flops": float(spent_on(own)[0]), "flops_of_design": float(spent_on(values_of(chosen))[0])}
        rows.append({"kind": CHOSEN, "family": _sizes(own), **at, **_ends(*chosen_loss)})
    convention = ACCORDING_TO_DECISIONS if "flops" in every and "flops" not in values else ""
    return pd.DataFrame(rows).assign(level=level, method=method_of(fit), convention=convention)


def as_decided(law: Law, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the fields of runs without their FLOPs, unless the law reads them or they are needed.

    Decisions of a fit count 6 FLOPs per active parameter and token, so a figure that shows decisions does the same.
    """
    counted = "tokens" in values and not {"params_active", "params_total"}.isdisjoint(values)
    kept = "flops" in law.inputs or not counted
    return {name: one for name, one in values.items() if kept or name != "flops"}


def _expansion(family: CurveFamily) -> float:
    return family.like.get("params_total", 1.0) / family.like.get("params_active", 1.0)


def loss_law_of(fit: FitResult | Law, design: Design) -> tuple[Law, dict[str, np.ndarray]]:
    """Return a law of the loss, and the known fields of the runs.

    Raises:
      UserError: the law does not predict the loss from sizes and tokens, or the runs lack one of its inputs.
    """
    law = fit.law if isinstance(fit, FitResult) else fit
    output = fit.output if isinstance(fit, FitResult) else next(iter(law.outputs))
    if output != "loss" or "num_layers" in law.inputs:
        raise UserError(
            f"The figure needs a law that predicts the loss from size and tokens, such as chinchilla; "
            f"{type(law).__name__} does not."
        )
    values = values_of(design)
    if missing := [name for name in law.inputs if name not in values and value_of(design, name) is None]:
        raise UserError(f"The runs have no {', '.join(missing)}, which the law reads; give a table with these columns.")
    return law, values


def values_of(design: Design) -> dict[str, np.ndarray]:
    """Return the known fields of runs as arrays, keyed by name."""
    return {name: np.atleast_1d(np.asarray(one, np.float64)) for name, one in known(design).items()}


def _sizes(values: Mapping[str, np.ndarray]) -> str:
    """Return the sizes of a design in words: 1.11B active, 24.7B total."""
    words = {"params_active": "active", "params_total": "total"}
    written = {name: f"{size(float(values[name][0]), 3)} {word}" for name, word in words.items() if name in values}
    if len(written) > 1 and values["params_total"][0] <= DENSE * values["params_active"][0]:
        return f"{size(float(values['params_total'][0]), 3)}, dense"
    return ", ".join(written.values())


def _curve(
    fit: FitResult | Law, law: Law, least: LowestLoss, family: str, level: float, target: float | None
) -> list[dict[str, str | float]]:
    """Return the rows of a curve, and of its prediction at the target budget, if any."""
    kinds = [CURVE] * len(least.budgets) + [TARGET] * bool(target)
    least = replace(least, budgets=np.append(least.budgets, target or []))
    every = zip(kinds, least.budgets, *with_interval(fit, law, least, level), strict=True)
    return [{"kind": kind, "family": family, "flops": budget, **_ends(*ends)} for kind, budget, *ends in every]


def _ends(loss: float, low: float, high: float) -> dict[str, float]:
    return {"loss": loss, "low": low, "high": high}


def method_of(fit: FitResult | Law) -> str:
    """Return the method of a fit's intervals, as text; empty for a law."""
    return fit.method if isinstance(fit, FitResult) else ""


def with_interval(
    fit: FitResult | Law, law: Law, least: Callable[[Law], Array], level: float
) -> tuple[np.ndarray, ...]:
    """Return each number of a functional with both ends of its interval, which are NaN without an uncertainty."""
    if isinstance(fit, FitResult) and fit.uncertainty is not None:
        return intervals(fit, least, level)[:3]
    with float64():
        middle = np.asarray(least(law), np.float64)
    return middle, np.full_like(middle, np.nan), np.full_like(middle, np.nan)


def spent_on(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the FLOPs of runs: the table's FLOPs, or else 6 per active parameter and token."""
    if "flops" in values:
        return values["flops"]
    active = values.get("params_active", values.get("params_total"))
    if active is None or "tokens" not in values:
        raise UserError(
            "The table does not determine the compute of the runs; add a column flops, or params_active and tokens."
        )
    return FLOPS_PER_PARAM_AND_TOKEN * active * values["tokens"]


def families_of(values: Mapping[str, np.ndarray], spent: np.ndarray) -> list[CurveFamily]:
    """Group runs by expansion. A family's typical run is the largest run of its middle level."""
    ratio = np.ones(len(spent))
    if {"params_total", "params_active"} <= {*values}:
        ratio = values["params_total"] / values["params_active"]
    families = []
    for own in groups_of(ratio):
        like = own.middle[np.argmax(spent[own.middle])]
        families.append(CurveFamily(own.label, own.rows, {name: float(one[like]) for name, one in values.items()}))
    return families


def least_of(values: Mapping[str, np.ndarray], family: CurveFamily, budgets: np.ndarray) -> LowestLoss:
    """Return a family's lowest loss at every budget, as a function of the law."""
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
    return LowestLoss(like, sizes, main, counted, budgets, ratios)


def loss_vs_compute(inputs: FigureInputs) -> Figure:
    """Draw the table of ``compute_table``: points, curves with bands, predictions at the target budget, a design."""
    table = inputs.table
    curves, runs, chosen, target = (table[table["kind"] == kind] for kind in (CURVE, RUN, CHOSEN, TARGET))
    families = list(dict.fromkeys(curves["family"]))
    # A design's own curve has the color of its star.
    grouped = list(dict.fromkeys(runs["family"])) if len(runs) else families[:1]
    colors = dict.fromkeys(families, INK) | dict(zip(grouped, classes(len(grouped)), strict=True))
    lost, banded = False, False
    # Curves are drawn after all points, so that points do not hide them.
    points_of, lines_of, legend = list[Series](), list[Series](), list[Series]()
    alike = len(families) > 1 and _same_curves(curves, families)
    level = in_percent(float(table["level"].iloc[0])) if "level" in table else ""
    for family, color in colors.items():
        points, line = runs[runs["family"] == family], curves[curves["family"] == family].sort_values("flops")
        low, high = interval_in(line)
        lost |= bool(np.isnan(low).any())
        banded |= not np.isnan(low).all()
        mark = "dashed" if np.isnan(low).all() else "line"
        if len(points):
            x, y = column(points, "flops"), column(points, "loss")
            points_of.append(Series(label=family, x=x, y=y, mark="points", color=color, in_legend=alike))
        if alike and family != families[-1]:
            continue
        label, drawn = ("all families", INK) if alike else (family, color)
        x, y = column(line, "flops"), column(line, "loss")
        least = Series(label=f"{label}, lowest loss", x=x, y=y, low=low, high=high, mark=mark, color=drawn, width=1.1)
        lines_of.append(replace(least, in_legend=False))
        if not alike:
            legend.append(Series(label=label, x=[], y=[], mark="joined" if len(points) else mark, color=drawn))
        for _, one in target[target["family"] == family].iterrows():
            lines_of.append(_marked(f"{label}, predicted at the target", one, "open", drawn, "" if alike else label))
    series = points_of + lines_of
    color = INK if alike else MUTED if len(families) > 1 else colors[families[0]]
    mark = "line" if banded else "dashed"
    if len(runs):
        legend.append(Series(label="lowest loss by the law", x=[], y=[], mark=mark, color=color))
    if banded and level:
        legend.append(Series(label=f"{level} interval", x=[], y=[], mark="band", color=color))
    top, bottom = _view(pd.concat([runs, chosen, target]), curves)
    for flops in np.unique(column(target, "flops")):
        label = f"target, {short(flops, 3)} FLOPs"
        series.append(Series(label=label, x=[flops, flops], y=[bottom, top], mark="dotted", color=INK))
    for _, one in chosen.iterrows():
        series.append(replace(_marked(f"design: {one['family']}", one, "stars", INK, "design"), in_legend=True))
    method = str(table["method"].iloc[0]) if "method" in table else ""
    bands = f"{level} intervals, {method}".strip(" ,")
    band = f"Bands are {bands}." + (" Dashed lines have none." if lost else "")
    if not banded:
        band = "There are no intervals: lines are dashed."
    if alike:
        band = f"The law gives all families the same line. {band}"
    named = any(str(family).startswith("expansion") for family in table["family"])
    at = " Labeled numbers are the predicted losses at the target budget" + ", with intervals" * banded + "."
    said = (
        "A line shows the law's lowest loss at each budget: the size varies with the proportions of the family's "
        f"typical run, and the remaining budget gives the tokens. {band}{at * bool(len(target))} A run lies above its "
        f"line because its size is not optimal, or because of noise.{f' {MEANING}' * named}{convention_of(table)}"
        f"{_about(chosen, level)}"
    )
    # The tables of a design count FLOPs layer by layer.
    is_6nd = len(chosen) > 0 and (bool(convention_of(table)) or not math.isclose(*_flops_of(chosen), rel_tol=EQUAL))
    return figure(
        "Loss against compute, with the law",
        said + inputs.whose,
        [
            Panel(
                x=replace(FLOPS, words="training FLOPs, 6·N·D") if is_6nd else FLOPS,
                y=replace(LOSS, scale="log"),
                series=series,
                ylim=(bottom, top),
                legend=legend,
            )
        ],
        columns=1,
        height=3.6,
    )


def convention_of(table: DataFrame) -> str:
    """Return the caption sentence about the convention of FLOPs in a table, or an empty string."""
    stated = table["convention"].iloc[0] if "convention" in table else ""
    return f" {stated}" if isinstance(stated, str) and stated else ""


def interval_in(rows: DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns ``low`` and ``high``, or NaN."""
    low, high = (column(rows, name) if name in rows else np.full(len(rows), np.nan) for name in ("low", "high"))
    return low, high


def _marked(label: str, row: Any, mark: str, color: str, name: str) -> Series:
    """Return a point with its error bar, and with its name, if any, loss and interval as text."""
    loss, low, high = (float(row.get(name, np.nan)) for name in ("loss", "low", "high"))
    words = f"{name}: {loss:#.4g}" if name else f"{loss:#.4g}"
    if math.isfinite(low) and math.isfinite(high):
        words += f" [{low:#.4g}, {high:#.4g}]"
    return Series(
        label=label,
        x=[float(row["flops"])],
        y=[loss],
        low=[low],
        high=[high],
        mark=mark,
        color=color,
        words=words,
        in_legend=False,
    )


def _about(chosen: DataFrame, level: str) -> str:
    """Return the caption sentences about the design."""
    if not len(chosen):
        return ""
    interval = f" with its {level} interval" if level and chosen["low"].notna().any() else ""
    drawn, own = _flops_of(chosen)
    counted = "."
    if not math.isclose(drawn, own, rel_tol=EQUAL):
        counted = f", at 6·N·D = {short(drawn, 3)} FLOPs like the runs; counted layer by layer, it has {short(own, 3)}."
    return f" The star is the design{interval}{counted} The line of its ratio keeps its proportions."


def _flops_of(chosen: DataFrame) -> tuple[float, float]:
    """Return the FLOPs at which the design is drawn, and its own."""
    return float(column(chosen, "flops")[0]), float(column(chosen, "flops_of_design")[0])


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
    margin = 1 + 0.06 * (high / low - 1)
    return float(high * margin), float(low / margin)
