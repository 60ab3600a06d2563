"""Read the options of a fit from the command line: penalty, fixed coefficients, initial guesses."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from moejax import run_table
from moejax.cli.number import MOST_STARTS, pairs
from moejax.errors import UserError
from moejax.fit.search.fit_law import EVERY_START, Search
from moejax.fit.search.objective import named_penalty
from moejax.fit.search.starts import GRIDS, Sobol
from moejax.fit.tables.column_names import law_of_formula
from moejax.laws import LAWS
from moejax.laws.formula import parse as parse_formula
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.predict import law_name
from moejax.quantities import parse, parse_whole_number
from moejax.wording import did_you_mean

SIGNS = {"positive": "+", "negative": "-", "either": "any"}
"""Options that declare the signs of coefficients."""


def law_of(arguments: argparse.Namespace) -> type:
    """Return the law that ``--law`` names or ``--form`` defines.

    Raises:
      UserError: there is no law of that name, or the formula does not match the table's columns.
    """
    check_formula_options(arguments)
    if arguments.form is None:
        return LAWS[law_name(arguments.law)]
    return formulas_of(arguments, [arguments.form], arguments.budget or "")[arguments.form]


def check_formula_options(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for formula options without a formula, for a formula together with a law, and for an empty
    budget.
    """
    if arguments.budget == "":
        raise UserError("--budget is empty; give a formula, such as 'C = 6*N*D', or leave it out.")
    if arguments.form is None:
        formulas_of(arguments, [])
        if arguments.budget is not None:
            raise UserError("--budget is of a formula (--form); a law of the catalogue has its own.")
    elif arguments.law is not None:
        raise UserError("--law and --form are two laws; give one.")


def formulas_of(arguments: argparse.Namespace, texts: Sequence[str], budget: str = "") -> dict[str, type[FormulaLaw]]:
    """Return the laws of formulas on the table's columns, by text. Declared signs apply to all of them.

    Raises:
      UserError: a formula does not match the table's columns, or a declared sign is of a coefficient that no formula
        has.
    """
    signs = _signs_of(arguments)
    if not texts:
        if signs:
            raise UserError(
                f"The sign of {', '.join(signs)} is the law's; only those of a formula (--form) are declared."
            )
        return {}
    trees = [parse_formula(text) for text in texts]
    if twice := [text for number, text in enumerate(texts) if trees[number] in trees[:number]]:
        raise UserError(f"--form {twice[0]!r} is given twice; give every formula once.")
    frame = run_table.read_as_it_is(arguments.runs)
    how = {"mapping": dict(pairs(arguments.map, "--map")), "loss": arguments.loss}
    names = {text: dict(law_of_formula(text, frame, **how).formula.signs) for text in texts}
    known = [name for each in names.values() for name in each]
    if unknown := [name for name in signs if name not in known]:
        raise UserError(f"No formula has a coefficient {unknown[0]}; {did_you_mean(unknown[0], known)}")
    own = {text: {name: sign for name, sign in signs.items() if name in each} for text, each in names.items()}
    return {text: law_of_formula(text, frame, **how, signs=own[text], budget=budget) for text in texts}


def _signs_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the signs that --positive, --negative and --either declare."""
    signs: dict[str, str] = {}
    for option, sign in SIGNS.items():
        for name in filter(None, map(str.strip, getattr(arguments, option).split(","))):
            if signs.setdefault(name, sign) != sign:
                raise UserError(f"{name} is declared to have two signs; give it to one of the options alone.")
    return signs


def penalty_of(arguments: argparse.Namespace) -> Any:
    """Return the penalty of ``--penalty``, ``--residual`` and ``--delta``."""
    return named_penalty(arguments.penalty, arguments.residual, arguments.delta)


def fixed_of(arguments: argparse.Namespace) -> dict[str, float]:
    """Return the coefficients that ``--fix`` gives."""
    return {name: parse(value) for name, value in pairs(arguments.fix, "--fix")}


def starts_of(arguments: argparse.Namespace, usual: str = "2048") -> Any:
    """Return the initial guesses: a number of points scaled by the data, or a published grid; ``usual`` by default.

    Raises:
      UserError: there is no grid of that name; the message lists the known ones.
    """
    given = usual if arguments.starts is None else arguments.starts
    if given in GRIDS:
        return GRIDS[given]
    try:
        count = parse_whole_number(given)
    except ValueError:
        known = ", ".join(GRIDS)
        raise UserError(f"--starts {given} is no count and no grid; the grids are {known}.") from None
    if not 1 <= count <= MOST_STARTS:
        raise UserError(f"--starts is {given}; give a whole number from 1 to {MOST_STARTS:,}.")
    return Sobol(count, arguments.seed)


def search_of(arguments: argparse.Namespace) -> Any:
    """Return the number of initial guesses that are optimized."""
    return EVERY_START if arguments.every_start else Search()
