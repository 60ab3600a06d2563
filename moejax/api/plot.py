"""Draw figures of results and runs, and draw the gallery's figures by name.

Each function returns a ``Figure``: a notebook displays it, ``save("figure.pdf")`` writes it, ``rows`` has its data and
``drawing`` is the Matplotlib figure.

The argument ``runs`` is the result of ``moejax.read_runs``, or a file or DataFrame, which is read with the options of
the fit. Functions raise ``UserError`` if the runs cannot be read or lack an input of the law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moejax.api.checked import checked
from moejax.api.read_table import RunTable, read_of, read_table, runs_of
from moejax.design.decide import DesignResult
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.selection.comparison import Comparison
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.estimates import decided_design
from moejax.laws.design import Design
from moejax.laws.law import Law
from moejax.papers.plots import ALL
from moejax.plan.plan import Plan
from moejax.plan.summary import as_data
from moejax.ranges import Level, Quantity
from moejax.report import sources
from moejax.report.figures import evidence
from moejax.report.figures.compute import compute_table
from moejax.report.figures.figure import Figure, styled
from moejax.report.figures.isoflop import isoflop_table, leverage_table
from moejax.report.figures.predictions import compared_laws
from moejax.report.plots import Plot, chosen, draw, example_of, inputs_of
from moejax.result import Column, Result, Table
from moejax.run_table import DataFrame
from moejax.say import say

__all__ = [
    "comparison",
    "fit",
    "influence",
    "isoflop",
    "leverage",
    "loss",
    "loss_vs_compute",
    "named",
    "names",
    "plan",
    "profile",
    "runs",
    "starts",
]


def __dir__() -> list[str]:
    """Return the public names for completion in editors."""
    return __all__


def names() -> Result:
    """Return a table of the figures that ``named`` can draw: name, content, law, and the columns of the figure's table.

    Example:
      >>> mj.plot.names().to_frame()
    """
    return Result(tables=[Table.of("Figures", NAMES, ALL.values())])


NAMES = (
    Column("name", value="name"),
    Column("shows", words=True, value="shows"),
    Column("source", words=True, value="source"),
    Column("law", value="law"),
    Column("columns of its table", words=True, value=lambda plot: ", ".join(plot.columns)),
    Column("needs a table", value=lambda plot: plot.needs_table),
)
"""Columns of ``names``; each row is a ``Plot``."""


def named(
    name: str,
    table: RunTable | None = None,
    *,
    law: FitResult | Law | None = None,
    synthetic: bool = False,
) -> Figure:
    """Draw the figure with this name in the gallery or in ``moejax.plot.names()``.

    Figures of a fit and its runs have functions, such as ``moejax.plot.loss_vs_compute``, ``fit`` and ``isoflop``.

    Args:
      name: the figure's name, such as ``runs`` or ``zhao-3``.
      table: a run table, or a table with the columns that ``names`` lists; some figures draw a law without a table.
      law: a fit or law of the figure's class, to draw instead of the published constants.
      synthetic: True to draw a figure that needs a table from synthetic data.

    Raises:
      UserError: there is no such figure, or its table is missing or lacks columns.

    Example:
      >>> mj.plot.named("chinchilla", law=mj.fit("runs.csv", "chinchilla")).save("chinchilla.pdf")
      >>> mj.plot.named("runs", "runs.csv")
      >>> mj.plot.named("loss-vs-compute", synthetic=True)
    """
    plots = chosen([name], ALL)
    if len(plots) > 1:
        raise UserError(f"{name} names {len(plots)} figures; give one of {', '.join(plot.name for plot in plots)}.")
    (plot,) = plots
    if synthetic and plot.needs_table:
        return draw(plot, example_of(plot))
    bare = law.law if isinstance(law, FitResult) else law
    frame = _table_of(plot, table, bare)
    if plot.name in OF_A_FIT and (frame is None or not {*plot.columns} <= {*frame}):
        if table is None or not isinstance(law, FitResult):
            raise UserError(
                f"{plot.name} shows a fit and its runs; give both, as mj.plot.named({plot.name!r}, runs, law=fit), or "
                "synthetic=True to see the figure with synthetic data."
            )
        return OF_A_FIT[plot.name](law, table)
    return draw(plot, inputs_of(plot, law=bare, table=frame))


def _table_of(plot: Plot, table: RunTable | None, law: Law | None) -> DataFrame | None:
    """Return the table of a figure. For figures of a fit, it is computed from the runs."""
    if table is None:
        return None
    if isinstance(table, ReadRuns):
        frame = table.frame
    else:
        frame = table if isinstance(table, pd.DataFrame) else sources.read(plot.name, Path(table))
    if plot.from_runs is None or {*plot.columns} <= {*frame}:
        return frame
    read = read_table(table, plot.from_runs.reads, {})
    counted, note = plot.from_runs.count(read.runs, read.frame)
    if note:
        say(note)
    return plot.from_runs.table(counted, None, law)


def fit(fit: FitResult, runs: RunTable | Runs) -> Figure:
    """Plot predicted against measured values of a fit's runs, and both against each input of the law.

    Args:
      fit: the result of ``moejax.fit``.
      runs: the fitted runs.

    Example:
      >>> mj.plot.fit(fit, "runs.csv").save("fit.pdf")
    """
    return _drawn("fit", evidence.fit_table(fit, _runs_of(runs, fit)))


@checked
def loss_vs_compute(
    fit: FitResult | Law,
    runs: RunTable | Runs | None = None,
    *,
    flops: Quantity | None = None,
    design: DesignResult | None = None,
    decide: Mapping[str, float] | None = None,
    level: Level = 0.9,
) -> Figure:
    """Plot loss against training FLOPs: the runs, the law's lowest loss at each budget with its interval, and a target.

    Args:
      fit: a fit, or a loss law, which has no intervals.
      runs: the fitted runs; without runs the curve is for dense models, and ``flops``
        or ``design`` is required.
      flops: the target budget, which the figure marks; by default the budget of ``design``.
      design: the result of ``moejax.design``, which the figure marks, with a curve of its proportions.
      decide: given quantities of a decision of the fit, such as ``{"flops": 1e22, "expansion": 16}``; the figure marks
        the decided model, with a curve of its expansion.
      level: coverage of the intervals.

    Raises:
      UserError: the law does not predict loss from size and tokens, or there are neither runs nor ``flops``
        nor ``design``.

    Example:
      >>> mj.plot.loss_vs_compute(fit, "runs.csv", flops=1e24).save("loss-vs-compute.pdf")
      >>> mj.plot.loss_vs_compute(fit, "runs.csv", design=mj.design(fit, flops=1e22))
    """
    chosen, chosen_loss = None if design is None else design.chosen, None
    if decide is not None:
        if design is not None or not isinstance(fit, FitResult):
            raise UserError("decide needs a fit and no design; leave one of them out.")
        chosen, chosen_loss = decided_design(fit, decide, level)
    if flops is None and design is not None:
        flops = design.optimum.values.get("flops")
    if runs is None and chosen is not None:
        table = compute_table(fit, flops=flops, level=level, chosen=chosen, chosen_loss=chosen_loss)
    elif runs is None:
        if flops is None:
            raise UserError("There are no runs to draw; give a target budget, such as flops=1e24.")
        size = np.sqrt([flops / 120])
        dense = Design(params_active=size, params_total=size, tokens=20 * size)
        table = compute_table(fit, dense, flops=flops, level=level)
    else:
        own = _runs_of(runs, fit)
        table = compute_table(
            fit, own.design, own.loss, flops=flops, level=level, chosen=chosen, chosen_loss=chosen_loss
        )
    return _drawn("loss-vs-compute", table)


def profile(fit: FitResult, runs: RunTable | Runs) -> Figure:
    """Plot profile likelihoods: the minimum of the objective with one coefficient held fixed at each of several values.

    Args:
      fit: the result of ``moejax.fit``.
      runs: the fitted runs.

    Example:
      >>> mj.plot.profile(fit, "runs.csv")
    """
    return _drawn("profile", evidence.profile_table(fit, _runs_of(runs, fit)))


def starts(fit: FitResult, runs: RunTable | Runs) -> Figure:
    """Plot the objective that each initial guess of the fit's search reached.

    Args:
      fit: the result of ``moejax.fit``.
      runs: the fitted runs.

    Example:
      >>> mj.plot.starts(fit, "runs.csv")
    """
    return _drawn("starts", evidence.starts_table(fit, _runs_of(runs, fit)))


def influence(
    fit: FitResult,
    runs: RunTable,
    estimand: str | None = None,
    *,
    decide: Mapping[str, float] | None = None,
    predict: Mapping[str, float] | None = None,
) -> Figure:
    """Plot the runs with the most influence on a coefficient, a decision or a predicted loss.

    Args:
      fit: the result of ``moejax.fit``.
      runs: the fitted runs.
      estimand: name or symbol of a coefficient, a decision or the law's output; by default the last coefficient.
      decide: given quantities of a decision, such as ``{"flops": 1e22}``.
      predict: quantities of a run whose output is predicted.

    Raises:
      UserError: there is no such estimand, or the runs do not determine it.

    Example:
      >>> mj.plot.influence(fit, "runs.csv", "params_exponent")
      >>> mj.plot.influence(fit, "runs.csv", "L*", decide={"flops": 1e22, "expansion": 16})
    """
    given = {name: [one] for name, one in (("decide", decide), ("predict", predict)) if one}
    return _drawn("influence", evidence.influence_table(fit, read_of(fit, runs), estimand, **given))


@checked
def isoflop(fit: FitResult | Law, runs: RunTable | Runs, *, flops: Quantity | None = None) -> Figure:
    """Plot loss against size at each compute budget: the runs, the fit's curves and their minima.

    Args:
      fit: a fit, or a loss law.
      runs: the fitted runs.
      flops: a target budget in FLOPs, which has curves without runs.

    Raises:
      UserError: the law does not predict loss from size and tokens, or no budget has two sizes of a group.

    Example:
      >>> mj.plot.isoflop(fit, "runs.csv", flops=1e22)
    """
    return _drawn("isoflop", isoflop_table(fit, _runs_of(runs, fit), flops=flops))


@checked
def leverage(
    fit: FitResult | Law, runs: RunTable | Runs, *, flops: Quantity | None = None, level: Level = 0.9
) -> Figure:
    """Plot the efficiency leverage of each group of runs, over compute and over expansion.

    Args:
      fit: a fit, or a loss law, which has no intervals.
      runs: the fitted runs, whose expansions and proportions are compared.
      flops: the largest budget; by default that of the runs.
      level: coverage of the intervals.

    Raises:
      UserError: the law does not predict loss from size and tokens, or does not distinguish the runs by expansion.

    Example:
      >>> mj.plot.leverage(fit, "runs.csv", flops=1e22)
    """
    return _drawn("leverage", leverage_table(fit, _runs_of(runs, fit), flops=flops, level=level))


def comparison(comparison: Comparison, runs: ReadRuns | None = None) -> Figure:
    """Plot predicted against measured losses, with one panel per law; held-out runs are marked.

    Args:
      comparison: the result of ``moejax.compare``.
      runs: the compared runs, as ``moejax.read_runs`` returned them; by default those of the comparison.

    Raises:
      UserError: the comparison does not know its runs, and none are given.

    Example:
      >>> mj.plot.comparison(mj.compare("runs.csv"))
    """
    runs = runs or comparison.read
    if runs is None:
        raise UserError("The comparison does not contain its runs; give the result of moejax.read_runs.")
    return styled(lambda: compared_laws(comparison, runs.runs, runs.rows.tolist()))


def plan(plan: Plan) -> Figure:
    """Plot the memory of a chip and the time of a step, by component.

    Args:
      plan: the result of ``moejax.plan``.

    Example:
      >>> mj.plot.plan(mj.plan(training, "h100:8"))
    """
    return _drawn("plan", sources.of_plan(as_data(plan)))


def runs(runs: RunTable) -> Figure:
    """Plot loss against training FLOPs with the frontier.

    Args:
      runs: the runs.

    Raises:
      UserError: the table has no column ``loss``, or lacks the columns that determine the FLOPs.

    Example:
      >>> mj.plot.runs("runs.csv")
    """
    return named("runs", runs)


def loss(*folders: str | Path) -> Figure:
    """Plot loss against tokens, with branches marked, from folders of training runs or studies.

    Args:
      folders: folders of training runs or studies.

    Raises:
      UserError: no folder is given, or a folder has no training log.

    Example:
      >>> mj.plot.loss("runs/quickstart").save("loss.pdf")
    """
    if not folders:
        raise UserError("Give the folder of a training run or a study, such as runs/quickstart.")
    return _drawn("loss", sources.losses_table(*map(Path, folders)))


def figure_of(answer: FitResult | Comparison | Plan | ReadRuns, given: ReadRuns | Runs | None = None) -> Figure:
    """Draw the figure that a result's ``plot()`` returns.

    Args:
      given: the result of ``moejax.read_runs`` for figures that show runs.

    Raises:
      UserError: the figure shows runs, but none are given.
    """
    if isinstance(answer, Plan):
        return plan(answer)
    if isinstance(answer, ReadRuns):
        return runs(answer)
    if isinstance(answer, FitResult) and given is not None:
        return fit(answer, given)
    if isinstance(answer, Comparison):
        return comparison(answer, given if isinstance(given, ReadRuns) else None)
    raise UserError("The figure shows the fitted runs; give the result of moejax.read_runs, as plot(runs).")


OF_A_FIT: dict[str, Callable[[FitResult, Any], Figure]] = {
    "fit": fit,
    "influence": influence,
    "isoflop": isoflop,
    "leverage": leverage,
    "loss-vs-compute": loss_vs_compute,
    "profile": profile,
    "starts": starts,
}
"""Functions that draw the figures of a fit and its runs, keyed by figure name."""


def _drawn(name: str, table: DataFrame) -> Figure:
    return draw(ALL[name], inputs_of(ALL[name], table=table))


def _runs_of(runs: RunTable | Runs, fit: FitResult | Law) -> Runs:
    if isinstance(runs, Runs):
        return runs
    return runs_of(fit, runs) if isinstance(fit, FitResult) else read_table(runs, type(fit), {}).runs
