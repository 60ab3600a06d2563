"""How a law is fitted, at the command line: penalty, given coefficients, starts."""

from __future__ import annotations

import argparse
from typing import Any

from moejax import run_table
from moejax.cli.number import MOST_STARTS
from moejax.cli.pairs import pairs
from moejax.errors import UserError
from moejax.fit.fit_law import EVERY_START, Search
from moejax.fit.formula_columns import law_of_formula
from moejax.fit.objective import PENALTIES, RESIDUALS
from moejax.fit.starts import GRIDS, Sobol
from moejax.laws import LAWS
from moejax.laws.predict import law_name
from moejax.quantities import parse, parse_whole_number


def law_of(arguments: argparse.Namespace) -> type:
    """The law that ``--law`` names, or ``--form`` writes.

    Raises:
      UserError: there is none of that name, or the formula is none of the table's columns.
    """
    signs = _signs_of(arguments)
    if arguments.form is None:
        if signs:
            raise UserError(
                f"The sign of {', '.join(signs)} is the law's; only those of a formula (--form) are declared."
            )
        return LAWS[law_name(arguments.law)]
    if arguments.law is not None:
        raise UserError("--law and --form are two laws; give one.")
    frame = run_table.read_as_it_is(arguments.runs)
    mapping = dict(pairs(arguments.map, "--map"))
    return law_of_formula(arguments.form, frame, mapping=mapping, loss=arguments.loss, signs=signs)


def _signs_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The signs that --positive, --negative and --either declare."""
    signs: dict[str, str] = {}
    for option, sign in (("positive", "+"), ("negative", "-"), ("either", "any")):
        for name in filter(None, map(str.strip, getattr(arguments, option).split(","))):
            if signs.setdefault(name, sign) != sign:
                raise UserError(f"{name} is declared to have two signs; give it to one of the options alone.")
    return signs


def penalty_of(arguments: argparse.Namespace) -> Any:
    """What ``--penalty``, ``--residual`` and ``--delta`` ask for."""
    for given, known, option in (
        (arguments.penalty, PENALTIES, "--penalty"),
        (arguments.residual, RESIDUALS, "--residual"),
    ):
        if given not in known:
            raise UserError(f"{option} {given} is not known; choose {' or '.join(known)}.")
    options = {} if arguments.delta is None else {"delta": arguments.delta}
    if arguments.delta is not None and not arguments.delta > 0:
        raise UserError(f"--delta is {arguments.delta}; it must be above 0.")
    try:
        return PENALTIES[arguments.penalty](residual=arguments.residual, **options)
    except TypeError as error:
        raise UserError(f"--penalty {arguments.penalty} has no --delta; leave it out.") from error


def fixed_of(arguments: argparse.Namespace) -> dict[str, float]:
    """The coefficients that ``--fix`` gives."""
    return {name: parse(value) for name, value in pairs(arguments.fix, "--fix")}


def starts_of(arguments: argparse.Namespace, usual: str = "2048") -> Any:
    """Where the search starts: so many points scaled by the data, or a published grid; ``usual`` if not given.

    Raises:
      UserError: there is no grid of that name; the sentence has the known ones.
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
    """How many of the starts are followed."""
    return EVERY_START if arguments.every_start else Search()
