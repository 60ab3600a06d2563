"""Draw Tian et al. (2025), Figures 3, 10 to 14 and 16: loss at fixed compute against one architecture variable.

The paper's losses are not public, so points come from a run table. Leverage curves come from the law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd

from moejax.errors import UserError
from moejax.fit.runs import budgets, runs_from
from moejax.fit.sweeps.budget_losses import LEAST_BUDGETS
from moejax.fit.sweeps.leverage import leverage_of
from moejax.laws.dense.chinchilla import HOFFMANN_2022, frontier
from moejax.laws.design import Design
from moejax.papers.documents import TIAN
from moejax.papers.tian.budget_figures import NEAR
from moejax.papers.tian.runs import LAW
from moejax.papers.tian.tables import OF_ROUTED, PRINTED_RATIO, ROUTED_RATIOS, in_percent
from moejax.quantities import short
from moejax.report.figures.figure import Figure, FigureInputs, column, ordered
from moejax.report.figures.law_curves import GRANULARITY_OF_LEVERAGE as GRANULARITY
from moejax.report.figures.law_curves import LEVERAGE, RATIO, leverage
from moejax.report.figures.panels import FLOPS, LOSS, Axis, Panel, Series, curves, curves_of, figure
from moejax.report.figures.style import ORANGE, RED, colored
from moejax.report.synthetic import NOISE, rng
from moejax.result import size
from moejax.run_table import DataFrame
from moejax.wording import told

SHARED = Axis("shared_share", "shared share S")
HEADS = Axis("num_heads", "attention heads", "log")
DENSE_LAYERS = Axis("num_dense_layers", "dense layers before the MoE layers")
ATTENTION = Axis("attention_share", "attention's share of the FLOPs", "percent")
COMPUTE = np.geomspace(1e18, 1e22, 41)


def architectures() -> pd.DataFrame:
    """Return synthetic sweeps of A, G and S at four budgets: the loss of a dense law at EL times the budget, plus
    noise."""
    random, dense = rng(), frontier(HOFFMANN_2022)
    sweeps = {
        "activation_ratio": [3 / (e + 1) for e in (2, 4, 8, 16, 32, 64, 128, 256)],
        "granularity": [2.0, 4.0, 6.0, 8.0, 12.0, 16.0],
        "shared_share": [0.0, 1 / 12, 1 / 3, 1 / 2, 2 / 3, 5 / 6],
    }

    def loss(at: Mapping[str, float], flops: float) -> float:
        gain = float(leverage(LAW, at["activation_ratio"], at["granularity"], flops))
        gain *= np.exp(-0.6 * (at["shared_share"] - 0.12) ** 2)
        return float(dense(Design(flops=gain * flops))) + random.normal(0.0, NOISE / 4)

    return _swept(sweeps, {"activation_ratio": 3 / 65, "granularity": 2.0, "shared_share": 1 / 3}, loss)


def layers() -> pd.DataFrame:
    """Return synthetic sweeps of dense layers and attention share at four budgets; both have small effects on the
    loss."""
    random, dense = rng(), frontier(HOFFMANN_2022)
    sweeps = {"num_dense_layers": (0, 1, 2, 3), "attention_share": (0.2, 0.28, 0.35, 0.42, 0.5)}

    def loss(at: Mapping[str, float], flops: float) -> float:
        miss = 0.004 * (at["num_dense_layers"] - np.log10(flops / 6e18)) ** 2 / 4
        miss += 0.2 * (at["attention_share"] - 0.35) ** 2
        return float(dense(Design(flops=3 * flops))) + miss + random.normal(0.0, NOISE / 8)

    return _swept(sweeps, {"num_dense_layers": 0, "attention_share": 0.35}, loss)


def _swept(
    sweeps: Mapping[str, Sequence[float]],
    usual: Mapping[str, float],
    loss: Callable[[Mapping[str, float], float], float],
) -> pd.DataFrame:
    rows = []
    for (sweep, values), flops in product(sweeps.items(), (6e18, 2e19, 6e19, 2e20)):
        for value in values:
            at = {**usual, sweep: value}
            rows.append({"sweep": sweep, "flops": flops, "loss": loss(at, flops), **at})
    return pd.DataFrame(rows)


def balances() -> pd.DataFrame:
    """Return the granularity sweep with two balance weights. With the weak weight, the loss also rises with
    granularity."""
    usual = architectures().query("sweep == 'granularity'").assign(balance_weight=1.0)
    weak = usual.assign(balance_weight=0.1, loss=usual["loss"] + 0.006 * np.log2(usual["granularity"]) ** 1.5)
    return pd.concat([weak, usual])


def sizes_by_heads() -> pd.DataFrame:
    """Return synthetic losses by the number of attention heads, for three sizes."""
    random, rows = rng(), []
    for (total, middle), heads in product(((3e8, 8.0), (1e9, 12.0), (4e9, 16.0)), (2, 4, 8, 16, 32, 64)):
        loss = 2.9 - 0.12 * np.log10(total / 3e8) + 0.006 * np.log2(heads / middle) ** 2 + random.normal(0.0, 0.002)
        rows.append({"params_total": total, "num_heads": heads, "loss": loss})
    return pd.DataFrame(rows)


@TIAN.experiment(
    "3",
    columns=("flops", "activation_ratio", "granularity", "shared_share", "loss"),
    example=architectures,
    shows="loss by activation, granularity and sharing",
)
def all_three(inputs: FigureInputs) -> Figure:
    """Draw Figure 3: loss against A, G and S, with a curve per budget."""
    panels = _those_of(lambda axis: [_isoflop(inputs.table, axis)], (RATIO, GRANULARITY, SHARED))
    return figure(
        "Loss at fixed compute against A, G and S",
        "Each curve is a budget; stars mark its lowest loss. Fewer active experts are always better; granularity and "
        "shared share have a best value." + inputs.whose,
        panels,
        columns=3,
        height=2.7,
    )


@TIAN.experiment(
    "10",
    law="leverage",
    columns=("flops", "activation_ratio", "loss"),
    example=architectures,
    shows="loss by activation ratio",
)
def activation(inputs: FigureInputs) -> Figure:
    """Draw Figure 10."""
    lines = curves(ROUTED_RATIOS, in_percent, COMPUTE, lambda ratio: leverage(inputs.law, ratio, 2.0, COMPUTE))
    return _with_leverage(inputs, RATIO, lines, "G = 2", f" {OF_ROUTED}")


@TIAN.experiment(
    "11", law="leverage", columns=("flops", "granularity", "loss"), example=architectures, shows="loss by granularity"
)
def granularity(inputs: FigureInputs) -> Figure:
    """Draw Figure 11."""
    held = PRINTED_RATIO
    if inputs.has(GRANULARITY.column, RATIO.column, "flops", "loss"):
        held = float(column(_sweep(inputs.table, GRANULARITY), RATIO.column).mean())
    chosen = (2.0, 4.0, 6.0, 8.0, 12.0, 16.0)
    lines = curves(chosen, "G = {:g}".format, COMPUTE, lambda one: leverage(inputs.law, held, one, COMPUTE))
    return _with_leverage(inputs, GRANULARITY, lines, in_percent(held))


@TIAN.experiment(
    "12",
    columns=("flops", "granularity", "balance_weight", "loss"),
    example=balances,
    shows="loss by granularity, weak balance loss",
)
def weak_balance(inputs: FigureInputs) -> Figure:
    """Draw Figure 12: loss against granularity with the usual and with a weak balance loss."""
    panels = [
        replace(_isoflop(own, GRANULARITY), title=f"balance loss × {weight:g}")
        for weight, own in inputs.table.groupby("balance_weight")
    ]
    return figure(
        "Granularity under weaker balance",
        "With a weaker balance loss the best granularity (stars) moves to fewer, larger experts." + inputs.whose,
        panels,
        columns=len(panels),
        height=2.8,
        sharey=True,
    )


@TIAN.experiment("13", columns=("flops", "shared_share", "loss"), example=architectures, shows="loss by shared share")
def shared(inputs: FigureInputs) -> Figure:
    """Draw Figure 13: loss against S by budget, and against compute by S."""
    panels = [
        _isoflop(inputs.table, SHARED),
        _by_compute(inputs.table, SHARED, lambda s: f"S = {100 * s:.3g} %", digits=5),
    ]
    return figure(
        "Loss against the share of shared experts",
        "A small share is best (stars), and the best share falls with compute. The law has no S, so there is no "
        "leverage to draw." + inputs.whose,
        panels,
        columns=2,
        height=2.8,
    )


@TIAN.experiment(
    "14",
    columns=("flops", "num_dense_layers", "attention_share", "loss"),
    example=layers,
    shows="loss by dense layers and attention's share",
)
def layers_and_attention(inputs: FigureInputs) -> Figure:
    """Draw Figure 14: loss against dense layers and attention share, loss against compute, and leverage."""
    labels = {DENSE_LAYERS: "{:g} dense layers", ATTENTION: "attention {:.0%}"}
    panels = _those_of(
        lambda axis: [
            _isoflop(inputs.table, axis),
            _by_compute(inputs.table, axis, labels[axis].format),
            *_over_usual(inputs.table, axis, labels[axis].format),
        ],
        labels,
    )
    return figure(
        "Loss against dense layers and attention's share of the compute",
        "Neither changes the loss much; stars mark the lowest loss of a budget. Leverage is relative to the runs "
        "without dense layers, or with the attention share nearest to 35 %, for values trained at "
        f"{LEAST_BUDGETS} budgets." + inputs.whose,
        panels,
        columns=3 if any(panel.y is LEVERAGE for panel in panels) else 2,
        height=2.7,
    )


USUAL = {DENSE_LAYERS: 0.0, ATTENTION: 0.35}
"""Baselines of leverage.

Appendix F.4 uses no dense layers as baseline. The attention baseline is inferred: the middle of the recommended range
of 30 % to 40 %.
"""


def _over_usual(table: DataFrame, axis: Axis, label: Callable[[float], str]) -> list[Panel]:
    """Return a panel of each value's leverage relative to the baseline, computed from loss-compute curves (Figures 14b
    and 14d)."""
    table = _sweep(table, axis)
    table = table.assign(**{axis.column: table[axis.column].round(2)})
    lines = curves_of(table, axis.column, "flops", "loss", label)
    every = dict(zip(ordered(table[axis.column]), lines, strict=True))
    usual = min(every, key=lambda value: abs(value - USUAL[axis]))
    runs = {value: runs_from(Design(flops=np.asarray(curve.x)), curve.y) for value, curve in every.items()}
    series = []
    for value, curve in every.items():
        if value == usual:
            continue
        try:
            gain = leverage_of(runs[value], runs[usual])
        except UserError:
            continue
        series.append(replace(curve, x=gain.flops, y=gain.value))
    title = f"over {label(usual)}"
    return [Panel(x=FLOPS, y=LEVERAGE, series=series, title=title, level=1.0)] if series else []


@TIAN.experiment(
    "16", columns=("params_total", "num_heads", "loss"), example=sizes_by_heads, shows="loss by attention heads"
)
def heads(inputs: FigureInputs) -> Figure:
    """Draw Figure 16: loss against attention heads, with a curve per size and stars for near-optimal runs."""
    # The number of key-value heads changes sizes slightly.
    number, sizes = budgets(column(inputs.table, "params_total"))
    table, series = inputs.table.assign(params_total=sizes[number]), []
    several = table.groupby("params_total")[HEADS.column].nunique() > 1
    sizes = [total for total in sizes.tolist() if several[total]]
    if not sizes:
        raise UserError("The table has no two runs with equal size and different num_heads; add such runs.")
    for total, color in colored(sizes):
        own = table[table["params_total"] == total].sort_values(HEADS.column)
        x, y = column(own, HEADS.column), column(own, "loss")
        near = y <= y.min() * (1 + NEAR["heads"])
        series.append(Series(label=f"N = {size(total, 3)}", x=x, y=y, mark="joined", color=color))
        series.append(
            Series(label=f"within {NEAR['heads']:.1%} of the lowest", x=x[near], y=y[near], mark="stars", color=RED)
        )
    return figure(
        "Loss against attention heads",
        "Many numbers of heads are near-optimal (stars) at every size." + inputs.whose,
        [Panel(x=HEADS, y=LOSS, series=series)],
        columns=1,
        height=3.2,
    )


HELD = (RATIO.column, GRANULARITY.column, SHARED.column, DENSE_LAYERS.column, ATTENTION.column, HEADS.column)
"""Columns that a sweep over one variable holds fixed, if the table has them."""


def _sweep(table: DataFrame, axis: Axis) -> DataFrame:
    """Return the runs of the sweep over one variable, with ``flops`` replaced by their budgets.

    The column ``sweep`` marks the runs of a sweep. Without it, take the runs that agree in all other variables (within
    10 %) and have the most values of this variable.

    Raises:
      UserError: no such runs have two values of the variable.
    """
    if "sweep" in table and axis.column in set(table["sweep"]):
        table = table[table["sweep"] == axis.column]
    table = table[table[axis.column].notna()]
    if axis in (GRANULARITY, SHARED) and RATIO.column in table:
        # If all experts are active, granularity and sharing have no effect.
        table = table[table[RATIO.column] < 1]
    if not len(table):
        raise UserError(f"No run of the table has {axis.column}; add this column, or name it with --map.")
    held = {name: column(table, name) for name in HELD if name != axis.column and name in table}
    # The attention share and the number of dense layers affect each other.
    if axis in (ATTENTION, DENSE_LAYERS):
        held.pop(ATTENTION.column, None)
    if axis is ATTENTION:
        held.pop(GRANULARITY.column, None)
    number, spent = budgets(column(table, "flops"))
    table = table.assign(flops=spent[number])
    if not held:
        return table
    numbers = [budgets(np.maximum(np.nan_to_num(values), 0.01))[0] for values in held.values()]
    alike = np.unique(np.stack(numbers), axis=1, return_inverse=True)[1]
    several = {group: table[alike == group] for group in np.unique(alike).tolist()}
    best = max(several.values(), key=lambda own: (own[axis.column].nunique(), len(own)))
    if best[axis.column].nunique() < 2:
        raise UserError(f"The table has no two runs that differ only in {axis.column}; add such runs.")
    return best


def _those_of(panels_of: Callable[[Axis], list[Panel]], axes: Iterable[Axis]) -> list[Panel]:
    """Return the panels of all axes for which the table has a sweep.

    Raises:
      UserError: the table has no sweep.
    """
    panels, missing = [], ""
    for axis in axes:
        try:
            panels += panels_of(axis)
        except UserError as error:
            missing = told(error)
    if not panels:
        raise UserError(missing)
    return panels


def _isoflop(table: DataFrame, axis: Axis) -> Panel:
    """Return a panel of loss against a variable: a curve per budget, with a star at its lowest loss."""
    series = []
    for curve in curves_of(_sweep(table, axis), "flops", axis.column, "loss", lambda flops: f"C = {short(flops)}"):
        x, y = np.asarray(curve.x), np.asarray(curve.y)
        lowest = int(np.argmin(y))
        star = Series(label="least loss", x=[x[lowest]], y=[y[lowest]], mark="stars", color=ORANGE)
        series += [curve, star]
    return Panel(x=axis, y=LOSS, series=series)


def _by_compute(table: DataFrame, axis: Axis, label: Callable[[float], str], digits: int = 2) -> Panel:
    """Return a panel of loss against compute, with a curve per rounded value of the variable."""
    table = _sweep(table, axis)
    table = table.assign(**{axis.column: table[axis.column].round(digits)})
    return Panel(x=FLOPS, y=LOSS, series=curves_of(table, axis.column, "flops", "loss", label))


def _with_leverage(inputs: FigureInputs, axis: Axis, lines: list[Series], held: str, more: str = "") -> Figure:
    panels = [Panel(x=FLOPS, y=LEVERAGE, series=lines, title=held)]
    said = f"Leverage by {inputs.name}, which grows with compute." + inputs.whose
    if inputs.has(axis.column, "flops", "loss"):
        panels.insert(0, _isoflop(inputs.table, axis))
        said = (
            f"Left: loss at fixed compute, stars at the lowest. Right: leverage by {inputs.name}, which grows with "
            "compute."
        )
    return figure(f"Loss and leverage against {axis.words}", said + more, panels, columns=2, height=2.8)
