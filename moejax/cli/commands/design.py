"""Implement ``moejax design``: derive an architecture from a law and a budget, with shadow prices of all
constraints.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

from moejax.cli.commands.architecture import load_architecture
from moejax.cli.commands.design_constraints import assumptions_of, constraints_of, range_of
from moejax.cli.commands.predict import law_and_constants
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.out_folder import out_set
from moejax.design.build import config_text
from moejax.design.constraint import Constraint
from moejax.design.decide import DesignResult, beyond, decide, of_shapes, on_chips, side_by_side
from moejax.design.frontier import frontier, landscape
from moejax.design.problem import of_sizes
from moejax.design.summary import (
    landscape_summary,
    laws_summary,
    summary,
    sweep_summary,
    with_assumptions,
    with_chips,
    with_extrapolation,
)
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult, load_of_runs
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.folder import atomic_write, write_json, write_text, written_in
from moejax.interval import OPEN
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.active_params import convention
from moejax.laws.predict import published
from moejax.report import render
from moejax.result import Result
from moejax.say import say
from moejax.wording import command, listed


def run(arguments: argparse.Namespace) -> int:
    """Find the optimum and print it."""
    with out_set(arguments.out):
        if arguments.law == "all":
            result = _all_laws(arguments)
        elif arguments.sweep:
            result = _sweep(arguments)
        else:
            result = _one_law(arguments)
        if arguments.out:
            write_json(arguments.out / "design.json", result.data)
    if arguments.out:
        say(f"Wrote {', '.join(written_in(arguments.out))} to {arguments.out}.")
    render.show(result, as_json=arguments.json)
    return 0


def _problem(arguments: argparse.Namespace, law: Any, constraints: Any, *, shape: bool = False) -> Any:
    taken = convention(arguments.active_convention)
    problem = of_sizes(
        law, constraints, active_params=taken, goal=arguments.minimise, assumptions=assumptions_of(arguments)
    )
    return of_shapes(problem, _like(arguments)) if shape else problem


def _like(arguments: argparse.Namespace) -> Any:
    found = load_architecture(arguments)
    return None if found is None else found[1]


def law_and_source(arguments: argparse.Namespace) -> tuple[str, Any, Any]:
    """Return the label of a law, the law, and its published constants or fit."""
    if Path(arguments.law).suffix == ".json":
        result = load_of_runs(arguments.law)
        for sentence in (*result.warnings, *result.dropped):
            say(f"! {sentence}")
        return type(result.law).__name__, result.law, result
    name, constants = law_and_constants(arguments.law, arguments.constants)
    known = published(name, constants)
    return f"{name} ({known.source})", known.law, known


def _one_law(arguments: argparse.Namespace) -> Result:
    name, law, known = law_and_source(arguments)

    problem = _problem(arguments, law, constraints_of(arguments), shape=arguments.shape)
    like, exact = _like(arguments), arguments.exact_shape
    likely, by = _likely(arguments, known)
    decision = decide(
        problem,
        like=like,
        within=arguments.within,
        known=known,
        exact=exact,
        likely=likely,
        by=by,
        level=arguments.level,
    )
    if arguments.out and decision.built is not None:
        says = f"Designed under the law {type(law).__name__}: {', '.join(map(str, problem.constraints))}."
        sequence = decision.optimum.problem.assumptions.sequence_length
        text = config_text(decision.built, "designed", says, sequence)
        write_text(arguments.out / "config.py", text)
        plan = command("moejax", "plan", f"--config={arguments.out}/config.py", "--topology", "CHIP:SHAPE")
        say(f"Its plan: {plan}")
    result = with_assumptions(summary(name, decision), {type(law).__name__: problem}, arguments.unique_tokens)
    if isinstance(known, FitResult) or decision.built is None:
        result = with_extrapolation(result, "Sizes alone lie", beyond(known, decision.optimum))
    if isinstance(known, FitResult):
        result = replace(result, warnings=[*_unknown(known, decision), *result.warnings])
    if arguments.chips:
        result = with_chips(result, on_chips(decision, arguments.chips), problem.assumptions)
    return result


def _unknown(fit: FitResult, decision: DesignResult) -> list[str]:
    """Return reasons why numbers of the optimum have no interval: the fit did not converge, or does not
    determine them.
    """
    if not fit.converged:
        return [
            "The optimum is that of a fit whose search did not converge: its numbers have no interval, and another "
            "search may find others."
        ]
    if fit.not_determined and (names := [name for name, one in decision.intervals.items() if one is OPEN]):
        what = f"{listed(names)} of the optimum rest{'s' if len(names) == 1 else ''}"
        return [
            f"{what} on coefficients that the runs do not determine ({', '.join(fit.not_determined)}): any others "
            f"that fit as well give others."
        ]
    return []


def _likely(arguments: argparse.Namespace, known: Any) -> tuple[Any, str]:
    """Return laws for intervals with the name of their source: resamples or draws; None for published constants."""
    if arguments.runs:
        resampled = fit_resamples(arguments, known)
        return (resampled if known.converged else None), "resamples"
    return (known.drawn() if hasattr(known, "drawn") else None), "drawn laws"


def fit_resamples(arguments: argparse.Namespace, result: Any) -> Any:
    """Return the bootstrap of a fit on the table that ``--runs`` names."""
    if not isinstance(result, FitResult):
        raise UserError("--runs gives intervals to a fit; name its file (fit.json of `moejax fit --out`) as --law.")
    return bootstrap(result, read_table(arguments, type(result.law)).runs, arguments.bootstrap)


def _all_laws(arguments: argparse.Namespace) -> Result:
    first = {name: next(iter(PUBLISHED[name].values())) for name in LAWS if PUBLISHED[name]}
    judged = {name: known.law for name, known in first.items() if "loss" in known.law.outputs}
    constraints = constraints_of(arguments)
    found = side_by_side(judged, constraints, lambda law, own: _problem(arguments, law, own, shape=arguments.shape))
    if all(isinstance(one, str) for one in found.values()):
        raise UserError(f"No law decides this. {'; '.join(f'{name}: {why}' for name, why in found.items())}")
    outside = {name: beyond(first[name], one) for name, one in found.items() if not isinstance(one, str)}
    problems = {name: one.problem for name, one in found.items() if not isinstance(one, str)}
    return with_assumptions(laws_summary(found, constraints, outside), problems, arguments.unique_tokens)


def _sweep(arguments: argparse.Namespace) -> Result:
    if len(arguments.sweep) > 1:
        return _landscape(arguments)
    name, low, high = range_of(arguments.sweep[0], "--sweep")
    label, law, known = law_and_source(arguments)

    # The upper bound stays as a constraint, since the swept quantity is one that the problem chooses.
    others = [
        *(one for one in constraints_of(arguments, least=0) if one.name != name),
        Constraint(name=name, high=high),
    ]
    problem = _problem(arguments, law, others, shape=arguments.shape)
    rows = frontier(problem, name, low, high)
    if arguments.out:
        # The import of figures is slow, and few designs are drawn.
        from moejax.report.frontier import draw

        with atomic_write(arguments.out / "frontier.png") as partial:
            draw(rows, name, label, partial)
    result = with_extrapolation(
        sweep_summary(label, name, rows), "The best designs lie", beyond(known, *(one.best for one in rows))
    )
    return with_assumptions(result, {type(law).__name__: problem}, arguments.unique_tokens)


def _landscape(arguments: argparse.Namespace) -> Result:
    if len(arguments.sweep) > 2:
        raise UserError(f"--sweep is given {len(arguments.sweep)} times; a landscape lies over two.")
    first, second = (range_of(text, "--sweep") for text in arguments.sweep)
    label, law, known = law_and_source(arguments)

    constraints = constraints_of(arguments, least=0)
    problem = _problem(arguments, law, constraints, shape=arguments.shape)
    found = landscape(problem, first, second)
    if arguments.out:
        # See _sweep for the local import.
        from moejax.report.frontier import draw_landscape

        with atomic_write(arguments.out / "landscape.png") as partial:
            draw_landscape(found, label, partial)
    optima = itertools.chain.from_iterable(found.optima)
    result = with_extrapolation(landscape_summary(label, found), "The designs lie", beyond(known, *optima))
    return with_assumptions(result, {type(law).__name__: problem}, arguments.unique_tokens)
