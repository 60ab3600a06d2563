"""Implement ``moejax fit --recipe NAME``: papers' procedures, each with its own columns, page and JSON."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moejax import run_table, table_file
from moejax.cli.commands.fit_options import law_of, starts_of
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.number import pairs
from moejax.cli.out_folder import out_set
from moejax.cli.progress import progress
from moejax.errors import UserError
from moejax.fit.domains import AGGREGATE, DomainLaws, domain_laws, domains_of
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.selection.holdout import split_by
from moejax.fit.stored_structure import with_structure
from moejax.fit.sweeps import isoflop_curves, recipe_isoflop
from moejax.fit.sweeps.budget_losses import MIXTURES
from moejax.fit.tables.column_names import with_derived, with_our_names
from moejax.fit.tables.dense_models import EXPERT_WORDS, MORE_THAN_DENSE
from moejax.fit.tables.read_runs import ReadRuns
from moejax.folder import write_text
from moejax.papers.abnar.recipe import RESAMPLES, abnar
from moejax.papers.chapter_002.launch_check import LaunchCheck, launch_check
from moejax.papers.plots import ALL
from moejax.papers.tian import recipe as recipe_tian
from moejax.papers.zhao import margins as zhao_margins
from moejax.papers.zhao import recipe as recipe_zhao
from moejax.quantities import parse
from moejax.report import render
from moejax.report.figures.figure import write_figure
from moejax.report.plots import chosen, draw, inputs_of
from moejax.say import say
from moejax.wording import told


def run(arguments: argparse.Namespace) -> int:
    """Apply the named recipe."""
    return RECIPES[arguments.recipe](arguments)


def _launch_check(arguments: argparse.Namespace) -> int:
    law = law_of(arguments)
    read = read_table(arguments, law)
    pilot = None
    if arguments.pilot is not None:
        pilot = read_table(argparse.Namespace(**{**vars(arguments), "runs": arguments.pilot}), law).runs
    split = split_by(read, (arguments.hold_out or ["params_active"])[0])
    with progress() as show:
        found = launch_check(
            law,
            read.runs,
            split,
            pilot=pilot,
            correction=arguments.correct,
            dropped=read.dropped,
            seed=arguments.seed,
            progress=show,
        )
        if arguments.out:
            write_launch_check(arguments.out, found)
    return _show(found, "launch_check", arguments)


def write_launch_check(folder: Path, found: LaunchCheck) -> None:
    """Write the fits of a launch check; ``fit.json`` is the recommended law."""
    with out_set(folder):
        (folder / "fits").mkdir(exist_ok=True)
        for name, fit in found.fits().items():
            fit.save(folder / "fits" / f"{name}.json")
        found.best.save(folder / "fit.json")


def _domains(arguments: argparse.Namespace) -> int:
    law = law_of(arguments)
    read = read_table(arguments, law)
    domains = domains_of(read.frame, _shares(arguments.shares))
    split = split_by(read, (arguments.hold_out or ["tokens"])[0])
    with progress() as show:
        found = domain_laws(law, read.runs, split, domains, dropped=read.dropped, seed=arguments.seed, progress=show)
        if arguments.out:
            write_domains(arguments.out, found, read)
    return _show(found, "domains", arguments)


def _shares(text: str | None) -> dict[str, float] | None:
    """Return the shares of --shares; None if not given.

    Raises:
      UserError: a share is not a number above 0.
    """
    if text is None:
        return None
    shares = {name: parse(value) for name, value in pairs(text.split(","), "--shares")}
    for name, share in shares.items():
        if not 0 < share < math.inf:
            raise UserError(f"--shares gives {name} a share of {share:g}; it must be above 0.")
    return {name: float(share) for name, share in shares.items()}


def write_domains(folder: Path, found: DomainLaws, read: ReadRuns) -> None:
    """Write the laws of a mixture's domains with their predictions; ``fit.json`` is the law of the aggregate."""
    tables = {"predicted_by_domain": found.table()}
    write_recipe(folder, "chapter-002", found.all_fits(), tables, read.frame, best=AGGREGATE, laws={})


def _zhao(arguments: argparse.Namespace) -> int:
    read = read_table(arguments, zhao_margins.INPUTS)
    split = split_by(read, (arguments.hold_out or ["params_total"])[0])
    starts = starts_of(arguments)
    with progress() as show:
        found = recipe_zhao.zhao(
            read.runs, split, resamples=arguments.bootstrap, starts=starts, seed=arguments.seed, progress=show
        )
        if arguments.out:
            write_recipe(
                arguments.out,
                "zhao",
                found.fits(read.dropped),
                found.tables(),
                read.frame.assign(loss=read.runs.loss),
                best="five_factor",
                laws={"five_factor": found.law},
            )
    return _show(found, "zhao", arguments)


def _isoflop(arguments: argparse.Namespace) -> int:
    read = read_table(arguments, recipe_isoflop.INPUTS, (recipe_isoflop.SIZE, *MIXTURES))
    return _show(recipe_isoflop.isoflop(read.runs, level=arguments.level), "isoflop", arguments)


def _tian(arguments: argparse.Namespace) -> int:
    if _is_dense(arguments):
        say("The table has no experts: only the best size at each budget is computed, as --recipe isoflop does.")
        return _isoflop(arguments)
    read = read_table(arguments, recipe_tian.INPUTS)
    tried = {
        name: run_table.numbers(read.frame[name], where=str(arguments.runs)).to_numpy(float)
        for name in ("learning_rate", "batch_tokens")
        if name in read.frame.columns
    }
    runs, starts = read.runs, starts_of(arguments)
    if "flops" not in dict(pairs(arguments.map, "--map")):
        runs, note = recipe_tian.in_model_scale(runs, read.frame)
        if note:
            say(note)
    with progress() as show:
        found = recipe_tian.tian(
            runs, **tried, starts=starts, level=arguments.level, seed=arguments.seed, progress=show
        )
        if arguments.out:
            write_tian(arguments.out, found, read, runs)
    return _show(found, "tian", arguments)


def _is_dense(arguments: argparse.Namespace) -> bool:
    """Return whether neither a column nor ``--map`` concerns experts."""
    mapping = dict(pairs(arguments.map, "--map"))
    columns = map(str, with_our_names(run_table.read_as_it_is(arguments.runs), mapping).frame.columns)
    return not any(name in MORE_THAN_DENSE or EXPERT_WORDS & {*name.split("_")} for name in (*columns, *mapping))


def write_tian(folder: Path, found: recipe_tian.TianRecipe, read: ReadRuns, runs: Runs) -> None:
    """Write the results of Tian's procedure, with the figures of its runs."""
    write_recipe(
        folder,
        "tian",
        found.fits(read.dropped),
        found.tables(),
        with_structure(read.frame.assign(loss=runs.loss, flops=runs.design.flops)),
        best="leverage",
        laws=found.laws,
    )


def _abnar(arguments: argparse.Namespace) -> int:
    read = read_table(arguments, isoflop_curves.INPUTS)
    with progress() as show:
        found = abnar(
            read.runs,
            split_by(read, arguments.hold_out[0]) if arguments.hold_out else None,
            resamples=arguments.bootstrap or RESAMPLES,
            starts=starts_of(arguments, usual="abnar"),
            level=arguments.level,
            seed=arguments.seed,
            progress=show,
        )
    return _show(found, "abnar", arguments)


def write_recipe(
    folder: Path,
    paper: str,
    fits: Mapping[str, FitResult],
    tables: Mapping[str, Any],
    runs: Any,
    *,
    best: str,
    laws: Mapping[str, Any],
) -> None:
    """Write a recipe's fits, its tables, and the paper's figures of them.

    Args:
      best: name of the fit for ``fit.json``, if it exists.
      laws: laws for figures by the names of the published laws that they replace. A figure uses the first of the tables
        and the runs that has its columns. A figure without table and law is not drawn.
    """
    written, left_out = ["fits/", "figures/"], []
    with out_set(folder):
        for name in ("fits", "figures"):
            (folder / name).mkdir(exist_ok=True)
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


def _show(found: Any, name: str, arguments: argparse.Namespace) -> int:
    """Print the results of a recipe, and write them to ``--out``."""
    summary = found.summary()
    if arguments.out:
        with out_set(arguments.out):
            for suffix, content in (("txt", render.text(summary)), ("json", render.json(summary))):
                write_text(arguments.out / f"{name}.{suffix}", content + "\n")
    render.show(summary, as_json=arguments.json)
    return 0


RECIPES = {
    "launch-check": _launch_check,
    "domains": _domains,
    "isoflop": _isoflop,
    "zhao": _zhao,
    "tian": _tian,
    "abnar": _abnar,
}
"""Recipes by name; each reads its table, prints its results and returns the exit status."""
