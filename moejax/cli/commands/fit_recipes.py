"""``moejax fit --recipe NAME``: whole procedures, each with its own columns, page and JSON."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

from moejax import run_table, table_file
from moejax.cli.commands.fit_options import law_of, starts_of
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.out_folder import out_set
from moejax.cli.progress import progress
from moejax.fit import isoflop_budgets, recipe_tian, recipe_zhao, zhao_margins
from moejax.fit.column_names import with_derived
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import split_by
from moejax.fit.launch_check import launch_check
from moejax.fit.recipe_abnar import RESAMPLES, abnar
from moejax.folder import atomic_write
from moejax.papers.plots import ALL
from moejax.report import render
from moejax.report.figures.files import write_figure
from moejax.report.plots import chosen, inputs_of
from moejax.say import say


def run(arguments: argparse.Namespace) -> int:
    """Follow the recipe that is named."""
    return RECIPES[arguments.recipe](arguments)


def _launch_check(arguments: argparse.Namespace) -> int:
    law = law_of(arguments)
    read = read_table(arguments, law)
    pilot = None
    if arguments.pilot is not None:
        pilot = read_table(argparse.Namespace(**{**vars(arguments), "runs": arguments.pilot}), law).runs
    split = split_by(read, (arguments.hold_out or ["params_active"])[0])
    with progress() as show:
        found = launch_check(law, read.runs, split, pilot=pilot, seed=arguments.seed, progress=show)
    return _show(found, "launch_check", arguments)


def _zhao(arguments: argparse.Namespace) -> int:
    read = read_table(arguments, zhao_margins.INPUTS)
    split = split_by(read, (arguments.hold_out or ["params_total"])[0])
    starts = starts_of(arguments)
    with progress() as show:
        found = recipe_zhao.zhao(
            read.runs, split, resamples=arguments.bootstrap, starts=starts, seed=arguments.seed, progress=show
        )
        if arguments.out:
            _write(
                arguments.out,
                "zhao",
                found.fits(read.dropped),
                "five_factor",
                found.tables(),
                read.frame.assign(loss=read.runs.loss),
            )
    return _show(found, "zhao", arguments)


def _tian(arguments: argparse.Namespace) -> int:
    read = read_table(arguments, recipe_tian.INPUTS)
    tried = {
        name: run_table.numbers(read.frame[name], where=str(arguments.runs)).to_numpy(float)
        for name in ("learning_rate", "batch_tokens")
        if name in read.frame.columns
    }
    starts = starts_of(arguments)
    with progress() as show:
        found = recipe_tian.tian(
            read.runs, **tried, starts=starts, level=arguments.level, seed=arguments.seed, progress=show
        )
    return _show(found, "tian", arguments)


def _abnar(arguments: argparse.Namespace) -> int:
    read = read_table(arguments, isoflop_budgets.INPUTS)
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


def _write(folder: Path, paper: str, fits: dict[str, FitResult], best: str, tables: dict[str, Any], runs: Any) -> None:
    """Write a recipe's fits, each of which can be asked alone, its tables, and the paper's figures of them.

    ``fit.json`` is the fit of the law named ``best``, and figures of that law are drawn by it. A figure takes the first
    of the tables and the runs that has its columns.
    """
    law = fits[best].law
    with out_set(folder):
        for name in ("fits", "figures"):
            (folder / name).mkdir(exist_ok=True)
        for name, table in tables.items():
            with atomic_write(folder / f"{name}.csv") as partial:
                partial.write_text(table_file.csv_text(table), encoding="utf-8")
        for name, fit in fits.items():
            fit.save(folder / "fits" / f"{name}.json")
        fits[best].save(folder / "fit.json")
        for plot in chosen([paper], ALL):
            held = (*tables.values(), with_derived(runs)) if plot.columns else ()
            own = next((table for table in held if {*plot.columns} <= {*table}), None)
            if own is not None or plot.law == best:
                mine = {"law": law, "law_name": "the fit"} if plot.law == best else {}
                inputs = inputs_of(plot, table=own, **mine)
                write_figure(folder / "figures", plot.name, functools.partial(plot.draw, inputs))
    say(f"Wrote fit.json, fits/, figures/ and {', '.join(f'{n}.csv' for n in tables)} to {folder}.")


def _show(found: Any, name: str, arguments: argparse.Namespace) -> int:
    """Print what a recipe found, and write it where asked."""
    summary = found.summary()
    if arguments.out:
        with out_set(arguments.out):
            for suffix, content in (("txt", render.text(summary)), ("json", render.json(summary))):
                with atomic_write(arguments.out / f"{name}.{suffix}") as partial:
                    partial.write_text(content + "\n", encoding="utf-8")
    render.show(summary, as_json=arguments.json)
    return 0


RECIPES = {"launch-check": _launch_check, "zhao": _zhao, "tian": _tian, "abnar": _abnar}
"""Recipes by name; each reads its table, prints what it found and returns the exit status."""
