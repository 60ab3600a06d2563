"""Apply papers' procedures to a run table, and write their fits, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moejax import run_table, table_file
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.starts import Starts
from moejax.fit.selection.holdout import split_by
from moejax.fit.sweeps.budget_losses import MIXTURES
from moejax.fit.tables.column_names import with_derived, with_our_names
from moejax.fit.tables.dense_models import EXPERT_WORDS, MORE_THAN_DENSE
from moejax.fit.tables.read_runs import ReadRuns
from moejax.folder import one_set, write_text
from moejax.laws.law import Law
from moejax.papers.abnar import isoflop_budgets
from moejax.papers.abnar.recipe import RESAMPLES
from moejax.papers.abnar.recipe import abnar as fit_abnar
from moejax.papers.chapter_002.domains import AGGREGATE, domain_laws, domains_of
from moejax.papers.chapter_002.launch_check import launch_check as check_launch
from moejax.papers.hoffmann import recipe as recipe_hoffmann
from moejax.papers.plots import ALL
from moejax.papers.tian import recipe as recipe_tian
from moejax.papers.zhao import margins as zhao_margins
from moejax.papers.zhao import recipe as recipe_zhao
from moejax.report import render
from moejax.report.figures.figure import write_figure
from moejax.report.plots import chosen, draw, inputs_of
from moejax.report.stored_structure import with_structure
from moejax.result import Result
from moejax.run_table import DataFrame
from moejax.say import StageCallback, say
from moejax.wording import told

STUDY_RECIPES = {"tian": recipe_tian.follow}
"""Procedures that a study can run at its end, by their name in ``analysis.recipe``."""
INPUTS = {
    "zhao": zhao_margins.INPUTS,
    "tian": recipe_tian.INPUTS,
    "abnar": isoflop_budgets.INPUTS,
    "isoflop": recipe_hoffmann.INPUTS,
}
"""Columns that each procedure without ``--law`` reads."""
ISOFLOP_GROUPS = (recipe_hoffmann.SIZE, *MIXTURES)
"""Further columns that distinguish the runs of a budget."""


@dataclass(frozen=True, kw_only=True)
class ProcedureSettings:
    """Settings of every procedure."""

    out: Path | None
    """Folder for the results, or None."""
    seed: int
    level: float
    progress: StageCallback


def launch_check(
    law: type, read: ReadRuns, pilot: Runs | None, hold_out: str, correction: str, how: ProcedureSettings
) -> Result:
    """Check a law before a large training run is launched: on the largest runs, and on the first losses of this run."""
    checked = check_launch(
        law,
        read.runs,
        split_by(read, hold_out),
        pilot=pilot,
        correction=correction,
        dropped=read.dropped,
        seed=how.seed,
        progress=how.progress,
    )
    if how.out:
        (how.out / "fits").mkdir(parents=True, exist_ok=True)
        for name, fit in checked.fits().items():
            fit.save(how.out / "fits" / f"{name}.json")
        checked.best.save(how.out / "fit.json")
    return _written(checked.summary(), "launch_check", how.out)


def domains(
    law: type, read: ReadRuns, shares: Mapping[str, float] | None, hold_out: str, how: ProcedureSettings
) -> Result:
    """Fit a law to each domain's losses in a data mixture, and to their aggregate."""
    split = split_by(read, hold_out)
    each = domains_of(read.frame, None if shares is None else dict(shares))
    laws = domain_laws(law, read.runs, split, each, dropped=read.dropped, seed=how.seed, progress=how.progress)
    if how.out:
        tables = {"predicted_by_domain": laws.table()}
        write_recipe(how.out, "chapter-002", laws.all_fits(), tables, read.frame, best=AGGREGATE, laws={})
    return _written(laws.summary(), "domains", how.out)


def zhao(read: ReadRuns, hold_out: str, starts: Starts, resamples: int, how: ProcedureSettings) -> Result:
    """Fit the marginal laws and the five-factor law as Zhao et al. do."""
    recipe = recipe_zhao.zhao(
        read.runs,
        split_by(read, hold_out),
        resamples=resamples,
        starts=starts,
        seed=how.seed,
        progress=how.progress,
    )
    if how.out:
        runs, laws = read.frame.assign(loss=read.runs.loss), {"five_factor": recipe.law}
        fits = recipe.fits(read.dropped)
        write_recipe(how.out, "zhao", fits, recipe.tables(), runs, best="five_factor", laws=laws)
    return _written(recipe.summary(), "zhao", how.out)


def isoflop(read: ReadRuns, how: ProcedureSettings) -> Result:
    """Fit the best size at each budget."""
    return _written(recipe_hoffmann.isoflop(read.runs, level=how.level).summary(), "isoflop", how.out)


def tian(read: ReadRuns, starts: Starts, how: ProcedureSettings, *, counts_flops: bool) -> Result:
    """Fit hyperparameters, allocation and leverage as Tian et al. do.

    Args:
      counts_flops: True to count FLOPs by the paper's convention, if the table has the architectures.
    """
    tried = {
        name: run_table.numbers(read.frame[name], where="the table").to_numpy(float)
        for name in ("learning_rate", "batch_tokens")
        if name in read.frame.columns
    }
    runs, note = recipe_tian.in_model_scale(read.runs, read.frame) if counts_flops else (read.runs, "")
    if note:
        say(note)
    recipe = recipe_tian.tian(runs, **tried, starts=starts, level=how.level, seed=how.seed, progress=how.progress)
    if how.out:
        write_tian(how.out, recipe, read, runs)
    return _written(recipe.summary(), "tian", how.out)


def is_dense(source: Path | str, mapping: Mapping[str, str]) -> bool:
    """Return whether no column of the table or the mapping concerns experts. If so, print that only the best sizes are
    computed."""
    columns = map(str, with_our_names(run_table.read_as_it_is(source), dict(mapping)).frame.columns)
    if any(name in MORE_THAN_DENSE or EXPERT_WORDS & {*name.split("_")} for name in (*columns, *mapping)):
        return False
    say("The table has no experts, so only the best size at each budget is computed, as with --recipe isoflop.")
    return True


def write_tian(folder: Path, recipe: recipe_tian.TianRecipe, read: ReadRuns, runs: Runs) -> None:
    """Write the results of Tian's procedure, including figures."""
    write_recipe(
        folder,
        "tian",
        recipe.fits(read.dropped),
        recipe.tables(),
        with_structure(read.frame.assign(loss=runs.loss, flops=runs.design.flops)),
        best="leverage",
        laws=recipe.laws,
    )


def abnar(read: ReadRuns, hold_out: str | None, starts: Starts, resamples: int, how: ProcedureSettings) -> Result:
    """Fit IsoFLOP surfaces as Abnar et al. do."""
    recipe = fit_abnar(
        read.runs,
        None if hold_out is None else split_by(read, hold_out),
        resamples=resamples or RESAMPLES,
        starts=starts,
        level=how.level,
        seed=how.seed,
        progress=how.progress,
    )
    return _written(recipe.summary(), "abnar", how.out)


def write_recipe(
    folder: Path,
    paper: str,
    fits: Mapping[str, FitResult],
    tables: Mapping[str, DataFrame],
    runs: DataFrame,
    *,
    best: str,
    laws: Mapping[str, Law],
) -> None:
    """Write a recipe's fits and tables, and the paper's figures drawn from them.

    Args:
      best: name of the fit for ``fit.json``, if it exists.
      laws: fitted laws for figures, keyed by the name of the published law that each replaces. A figure uses the first
        table (or the runs) with its columns. Figures without a table and a law are not drawn.
    """
    written, left_out = ["fits/", "figures/"], []
    with one_set():
        for name in ("fits", "figures"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            write_text(folder / f"{name}.csv", table_file.csv_text(table))
        for name, fit in fits.items():
            fit.save(folder / "fits" / f"{name}.json")
        if best in fits:
            fits[best].save(folder / "fit.json")
            written.insert(0, "fit.json")
        for plot in chosen([paper], ALL):
            held = (*tables.values(), with_derived(runs)) if plot.columns else ()
            own = next((table for table in held if {*plot.columns} <= {*table}), None)
            if own is None and plot.law not in laws:
                continue
            mine = {"law": laws[plot.law], "law_name": "the fit"} if plot.law in laws else {}
            try:
                figure = draw(plot, inputs_of(plot, table=own, **mine))
            except UserError as error:
                left_out.append(f"{plot.name} is not drawn: {told(error)}")
                continue
            write_figure(folder / "figures", plot.name, lambda figure=figure: figure)
    for sentence in left_out:
        say(sentence)
    say(f"Wrote {', '.join([*written, *(f'{name}.csv' for name in tables)])} to {folder}.")


def _written(summary: Result, name: str, folder: Path | None) -> Result:
    """Write a recipe's summary to the folder, if any, and return it."""
    if folder is not None:
        for suffix, content in (("txt", render.text(summary)), ("json", render.json(summary))):
            write_text(folder / f"{name}.{suffix}", content + "\n")
    return summary
