"""Draw Tian et al. (2025), Figures 2, 7, 8 and 9: learning rate, batch size, model scale and tokens by budget."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from moejax.errors import UserError
from moejax.fit.runs import budgets
from moejax.laws.law import Law, outputs_of
from moejax.laws.predict import published
from moejax.papers.documents import TIAN
from moejax.papers.tian.recipe import size_table
from moejax.papers.tian.runs import from_runs
from moejax.papers.tian.tables import GROUPS
from moejax.report.figures.figure import Figure, FigureInputs, column, evaluate, ordered
from moejax.report.figures.panels import FLOPS, Axis, Field, Panel, Series, figure
from moejax.report.figures.style import BLUE, INK, MUTED, ORANGE, RED
from moejax.report.synthetic import rng
from moejax.run_table import DataFrame

BATCH = Axis("batch_tokens", "batch, tokens", "quantity")
RATE = Axis("learning_rate", "peak learning rate", "log")
SCALE = Axis("flops_per_token", "model scale M, FLOPs/token", "log")
TOKENS = Axis("tokens", "training tokens", "quantity")
BUDGETS = np.geomspace(3e17, 1e21, 41)
SEQUENCE = 4096
READS = ("flops", "learning_rate", "batch_tokens")
NEAR = {"hyperparameters": 0.0025, "heads": 0.005}
"""Maximum relative excess over the lowest loss of near-optimal runs: Appendix E.1, Appendix M."""


def grids() -> pd.DataFrame:
    """Return a synthetic grid of learning rates and batch sizes around the law at 6e19 FLOPs, for three activation
    ratios."""
    random, law, flops = rng(), published("hyperparameters").law, 6e19
    best = [float(evaluate(law, name, flops=flops)) for name in ("learning_rate", "batch_tokens")]
    rows = []
    for ratio, i, j in product((3 / 17, 3 / 65, 3 / 257), range(-3, 4), range(-3, 4)):
        loss = 2.6 + 0.15 * ratio + 0.006 * (i**2 + 0.6 * j**2 - 0.6 * i * j) * 0.8 + abs(random.normal(0.0, 0.001))
        rate, batch = best[0] * 2.0 ** (i / 1.5), best[1] * 2.0**j
        rows.append(
            {"activation_ratio": ratio, "flops": flops, "learning_rate": rate, "batch_tokens": batch, "loss": loss}
        )
    return pd.DataFrame(rows)


@TIAN.experiment("2", law="hyperparameters", columns=READS, shows="learning rate, batch and allocation by compute")
def all_four(inputs: FigureInputs) -> Figure:
    """Draw Figure 2."""
    return _picture(inputs, [*_hyperparameters(inputs), *_allocation(inputs)], "Hyperparameters and allocation")


@TIAN.experiment("7", law="hyperparameters", columns=READS, shows="best learning rate and batch by compute")
def hyperparameters(inputs: FigureInputs) -> Figure:
    """Draw Figure 7."""
    return _picture(inputs, _hyperparameters(inputs), "Best batch and learning rate")


@TIAN.experiment(
    "9",
    columns=("part", "flops", "flops_per_token", "tokens"),
    from_runs=from_runs(size_table, "tokens"),
    shows="optimal size and tokens by compute",
)
def allocation(inputs: FigureInputs) -> Figure:
    """Draw Figure 9."""
    caption = (
        "Compute-optimal model scale and tokens (Table 5): at every budget, the best MoE model is smaller and sees "
        "more tokens than the best dense model."
    )
    return figure("Best model scale and tokens", caption + inputs.whose, _allocation(inputs), columns=2, height=2.8)


@TIAN.experiment(
    "8",
    law="hyperparameters",
    columns=("activation_ratio", *READS, "loss"),
    example=grids,
    shows="near-optimal learning rates and batches",
)
def near_optimal(inputs: FigureInputs) -> Figure:
    """Draw Figure 8: the loss by learning rate and batch size, with a panel per activation ratio."""
    fields = []
    for title, own in _grids(inputs.table):
        cells = own.pivot_table(values="loss", index=BATCH.column, columns=RATE.column, aggfunc="min")
        rates, batches = cells.columns.to_numpy(float), cells.index.to_numpy(float)
        above = 100 * (cells.to_numpy() / np.nanmin(cells) - 1)
        rows, columns = np.nonzero(above <= 100 * NEAR["hyperparameters"])
        near = f"near-optimal: within {NEAR['hyperparameters']:.2%} of the lowest loss"
        at = [[float(evaluate(inputs.law, axis.column, flops=own["flops"].iloc[0]))] for axis in (RATE, BATCH)]
        marks = [
            Series(label=near, x=rates[columns], y=batches[rows], mark="points", color=RED),
            Series(label="the law", x=at[0], y=at[1], mark="stars", color=ORANGE),
        ]
        fields.append(
            Field(
                x=RATE,
                y=BATCH,
                z=Axis("loss_above_least_percent", "loss above least, %"),
                xs=rates,
                ys=batches,
                zs=above,
                title=title,
                marks=marks,
                contours=(0.25, 1, 2, 4),
            )
        )
    return figure(
        "Near-optimal hyperparameters by activation ratio",
        f"Loss by learning rate and batch size, with {inputs.name} (star): the law should be among the red points at "
        "every activation ratio." + inputs.whose,
        fields,
        columns=3,
        height=2.5,
    )


LEAST_TRIED = 2
"""Minimum number of learning rates and batch sizes of a grid."""


def _grids(table: DataFrame) -> list[tuple[str, DataFrame]]:
    """Return the rows of each activation ratio at its largest budget with several learning rates and batch sizes.

    Raises:
      UserError: no activation ratio has such a budget.
    """
    number, spent = budgets(column(table, "flops"))
    table, grids = table.assign(flops=spent[number]), []
    for ratio in ordered(table["activation_ratio"]):
        for flops in reversed(spent.tolist()):
            own = table[(table["activation_ratio"] == ratio) & (table["flops"] == flops)]
            if min(own["learning_rate"].nunique(), own["batch_tokens"].nunique()) >= LEAST_TRIED:
                grids.append((f"A = {100 * ratio:.3g} %", own))
                break
    if not grids:
        raise UserError(
            f"No activation ratio was trained with {LEAST_TRIED} learning rates and {LEAST_TRIED} batch sizes at one "
            f"budget; add such runs."
        )
    return grids


def _hyperparameters(inputs: FigureInputs) -> list[Panel]:
    """Return panels of batch size and learning rate by compute: runs, the law, and Table 8 with its power law."""
    printed = {
        RATE: [float(group.rate) for group in GROUPS],
        BATCH: [SEQUENCE * float(group.batch) for group in GROUPS],
    }
    flops = [group.flops for group in GROUPS]
    tables = published("hyperparameters", "tian-2025-tables").law
    panels = []
    for axis in (BATCH, RATE):
        series = _trained(inputs.table, axis) if inputs.has("flops", axis.column) else []
        # A law with only one of the two outputs has no line in the other panel.
        if axis.column in outputs_of(inputs.law):
            series.append(_law(inputs.law, axis, inputs.name, "line", BLUE))
        series += [
            _law(tables, axis, "power law through Table 8", "dashed", ORANGE),
            Series(label="settings of Table 8", x=flops, y=printed[axis], mark="open", color=INK),
        ]
        panels.append(Panel(x=FLOPS, y=axis, series=series))
    return panels


def _allocation(inputs: FigureInputs) -> list[Panel]:
    """Return panels of Table 5's laws, with the runs' best sizes and their laws if the table has them."""
    moe, dense = (published("allocation", f"tian-2025-{part}").law for part in ("moe", "dense"))
    panels = []
    for axis in (SCALE, TOKENS):
        series = _trained(inputs.table, axis) if inputs.has("part", "flops", axis.column) else []
        series.append(_law(moe, axis, "MoE, Table 5", "line", BLUE))
        series.append(_law(dense, axis, "dense, Table 5", "dotted", RED))
        panels.append(Panel(x=FLOPS, y=axis, series=series))
    return panels


def _law(law: Law, axis: Axis, label: str, mark: str, color: str) -> Series:
    values = evaluate(law, axis.column, flops=BUDGETS)
    return Series(label=label, x=BUDGETS, y=values, mark=mark, color=color)


PARTS = {"mixtures": MUTED, "dense": RED}


def _trained(table: DataFrame, axis: Axis) -> list[Series]:
    """Return the table's runs and the laws fitted to them, separately for MoE and dense models if it has the column
    ``part``."""
    parts = [part for part in PARTS if "part" in table and part in set(table["part"])]
    series = []
    for part, own in [(part, table[table["part"] == part]) for part in parts] or [("", table)]:
        color, label = PARTS.get(part, MUTED), f"runs, {part}" if part else "runs"
        own = own.sort_values("flops")
        x = column(own, "flops")
        series.append(Series(label=label, x=x, y=column(own, axis.column), mark="points", color=color))
        if (fitted := f"fitted_{axis.column}") in own:
            through = Series(label=f"law through {label}", x=x, y=column(own, fitted), mark="dashed", color=color)
            series.append(through)
    return series


def _picture(inputs: FigureInputs, panels: list[Panel], title: str) -> Figure:
    return figure(
        title,
        "The paper's learning rates and batch sizes (Table 8) follow a power law, but not the printed Eq. 5, which "
        "gives smaller batches and larger learning rates." + inputs.whose,
        panels,
        columns=2,
        height=2.6,
    )
