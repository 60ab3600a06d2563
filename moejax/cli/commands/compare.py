"""Implement ``moejax compare``: compare laws on a table of runs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from moejax.cli.commands.fit_options import SIGNS, fixed_of, formulas_of, penalty_of
from moejax.cli.commands.run_table_options import read_table, splits_of
from moejax.cli.out_folder import out_set
from moejax.cli.progress import progress
from moejax.errors import UserError
from moejax.fit.selection.comparison import Comparison, compare, of_the_loss, summary
from moejax.fit.tables.read_runs import ReadRuns
from moejax.folder import write_json, write_text
from moejax.laws import LAWS
from moejax.laws.design import FIELDS
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.predict import law_name
from moejax.report import render
from moejax.report.figures import compared_laws
from moejax.report.figures.figure import write_figure
from moejax.result import Result
from moejax.run_sources import source
from moejax.say import say
from moejax.wording import listed


def run(arguments: argparse.Namespace) -> int:
    """Read the runs, fit the laws, test them on held-out runs, and print the comparison."""
    formulas = formulas_of(arguments, arguments.form)
    asked = arguments.laws or ("" if formulas else "all")
    named = [] if asked in ("", "all") else [law_name(name) for name in asked.split(",")]
    laws = (of_the_loss(LAWS, named) if asked else {}) | formulas
    read = _read(arguments, formulas)
    if not (arguments.hold_out or arguments.each or arguments.folds):
        arguments.hold_out = ["tokens"]
    splits = splits_of(read, arguments)
    with progress() as show:
        found = compare(
            laws,
            read.runs,
            splits,
            penalty=penalty_of(arguments),
            fixed=fixed_of(arguments),
            seed=arguments.seed,
            progress=show,
        )
    title = f"Laws compared on {source.named(arguments.runs)}"
    if arguments.out:
        with out_set(arguments.out):
            _write(arguments.out, found, read, summary(found, title, verbose=True))
    result = summary(found, title, arguments.verbose)
    result = replace(result, notes=[f"Next: {next_command(arguments, found.next_law)}"])
    render.show(result, as_json=arguments.json)
    return 0


def _read(arguments: argparse.Namespace, formulas: Mapping[str, type[FormulaLaw]]) -> ReadRuns:
    """Return the runs, with the columns and the target of the formulas."""
    targets = list(dict.fromkeys(target for law in formulas.values() for target in law.outputs))
    if len(targets) > 1:
        raise UserError(f"The formulas are of {listed(targets)}; laws are compared on one target.")
    own = dict.fromkeys(name for law in formulas.values() for name in law.inputs if name not in FIELDS)
    if not targets or targets == ["loss"]:
        return read_table(arguments, tuple(own))
    read = read_table(argparse.Namespace(**{**vars(arguments), "loss": targets[0]}), tuple(own))
    return replace(read, runs=replace(read.runs, output=targets[0]))


def next_command(arguments: argparse.Namespace, law: str) -> str:
    """Return the command that fits the recommended law to the same rows in the same way."""
    words = ["moejax", "fit", str(arguments.runs), "--form" if law in arguments.form else "--law", law]
    if law in arguments.form:
        words += [
            word for sign in SIGNS if getattr(arguments, sign) for word in (f"--{sign}", getattr(arguments, sign))
        ]
    for name in ("map", "where", "fix"):
        words += [word for value in getattr(arguments, name) for word in (f"--{name}", value)]
    usual = {"loss": "loss", "group": None, "weight": None, "best_by": None, "penalty": "huber", "residual": "log"}
    for name, value in {**usual, "delta": None}.items():
        if (given := getattr(arguments, name)) != value:
            words += [f"--{name.replace('_', '-')}", str(given)]
    for name in ("smooth", "drop_invalid", "drop_duplicates", "trust_units"):
        words += [f"--{name.replace('_', '-')}"] if getattr(arguments, name) else []
    return shlex.join([*words, "--bootstrap", "200", "--out", "fit"])


def _write(folder: Path, found: Comparison, read: ReadRuns, result: Result) -> None:
    figure = write_figure(
        folder, "predicted_vs_actual", lambda: compared_laws.draw(found, read.runs, read.rows.tolist())
    )
    words = read.runs.output.replace("_", " ")
    image = f"\n![Predicted against measured {words}, a panel per law]({figure[0]})\n"
    write_text(folder / "compare.md", render.markdown(replace(result, notes=())) + image)
    write_json(folder / "compare.json", result.data)
    say(f"Wrote compare.json, compare.md, {', '.join(figure)} to {folder}.")
