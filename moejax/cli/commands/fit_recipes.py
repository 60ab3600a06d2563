"""``moejax fit --recipe NAME``: whole procedures, each with its own columns, page and JSON."""

from __future__ import annotations

import argparse
from typing import Any

from moejax import run_table
from moejax.cli.commands.fit_options import law_of, starts_of
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.out_folder import out_set
from moejax.cli.progress import progress
from moejax.fit import isoflop_budgets, recipe_tian, recipe_zhao
from moejax.fit.holdout import split_by
from moejax.fit.launch_check import launch_check
from moejax.fit.recipe_abnar import RESAMPLES, abnar
from moejax.folder import atomic_write
from moejax.report import render


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
    read = read_table(arguments, recipe_zhao.INPUTS)
    split = split_by(read, (arguments.hold_out or ["params_total"])[0])
    starts = starts_of(arguments)
    with progress() as show:
        found = recipe_zhao.zhao(
            read.runs, split, resamples=arguments.bootstrap, starts=starts, seed=arguments.seed, progress=show
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
