"""Implement ``moejax leverage``: compute the ratio of the FLOPs of two model families at equal loss."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from moejax.cli.commands.design import fit_resamples, law_and_source
from moejax.cli.commands.fit_options import fixed_of
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.number import pairs
from moejax.design.constraint import held
from moejax.design.decide import beyond
from moejax.design.formula_leverage import FormulaLeverage, held_by
from moejax.design.leverage import leverage, proportions, resampled
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.sweeps.budget_losses import MIXTURES, NEAR_LOSS, SIZES, BudgetLosses
from moejax.fit.sweeps.leverages import Between, leverage_of
from moejax.fit.uncertainty.extrapolation import outside, sentences
from moejax.interval import check_level, in_percent, interval
from moejax.laws import called
from moejax.laws.catalogue import find
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import Design
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.predict import beyond_in_words, check_scale
from moejax.quantities import format, parse
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.run_sources.source import has_prefix, with_condition
from moejax.wording import counted, listed

BEYOND = ("a_beyond", "b_beyond")
"""JSON names of the ratios by which each curve is extrapolated beyond the FLOPs of its runs."""


def run(arguments: argparse.Namespace) -> int:
    """Measure the leverage and print it."""
    check_level(arguments.level)
    for flops in arguments.flops or ():
        check_scale(Design(flops=flops))
    rows, notes, warnings = _under_a_law(arguments) if arguments.law else _of_tables(arguments)
    columns = (
        Column("flops", format),
        Column("leverage", ".3g"),
        Column(f"{in_percent(arguments.level)} interval"),
        Column("A beyond", ".3g"),
        Column("B beyond", ".3g"),
    )
    cells = [
        [
            row["flops"],
            "undefined" if row["leverage"] is None else row["leverage"],
            "" if row["low"] is None else f"[{row['low']:.3g}, {row['high']:.3g}]",
            *(None if row.get(name, 1.0) == 1 else row[name] for name in BEYOND),
        ]
        for row in rows
    ]
    table = Table(f"FLOPs of {arguments.b} per FLOP of {arguments.a}, at equal loss", columns, cells)
    data = {"a": arguments.a, "b": arguments.b, "level": arguments.level, "leverage": rows}
    render.show(Result(warnings=warnings, tables=[table], notes=notes, data=data), as_json=arguments.json)
    return 0


def _of_tables(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    families = []
    for text in (arguments.a, arguments.b):
        path, condition = with_condition(text)
        if not has_prefix(path) and "://" not in str(path) and not Path(str(path).partition("#")[0]).exists():
            raise UserError(f"There is no table {path}. Give tables of runs, or a --law for {text}.")
        given = argparse.Namespace(**vars(arguments))
        given.runs, given.where = path, [*arguments.where, *([condition] if condition else [])]
        families.append(read_table(given, ("flops",), (*SIZES, *MIXTURES)).runs)
    a, b = families
    shared = len({*zip(a.design.flops, a.loss, strict=True)} & {*zip(b.design.flops, b.loss, strict=True)})
    at = None if arguments.flops is None else np.asarray(arguments.flops)
    found = leverage_of(a, b, at, fixed=fixed_of(arguments), level=arguments.level, seed=arguments.seed)
    rows = [_row(*numbers) for numbers in zip(found.flops, found.value, found.low, found.high, strict=True)]
    for row, *times in zip(rows, *found.beyond, strict=True):
        row |= {name: None if one != one else float(one) for name, one in zip(BEYOND, times, strict=True)}
    undefined = any(row["leverage"] is None for row in rows)
    notes = [f"{name}: {_in_words(one)}" for name, one in zip("AB", found.budgets, strict=True)]
    if any(len(np.unique(runs.group)) < len({*zip(runs.group, runs.design.flops, strict=True)}) for runs in families):
        notes.append(
            "Runs are taken to scatter independently. Checkpoints of one training share its luck, of which intervals "
            "know nothing."
        )
    notes += ["Undefined where A's loss lies below all that B's loss-compute curve reaches."] * undefined
    in_both = [
        f"{counted(shared, 'run')} of equal FLOPs and loss {'is' if shared == 1 else 'are'} in A and in B: what both "
        f"have is no gain of one over the other. Give each family a condition that the other's rows do not meet."
    ]
    return (
        rows,
        notes,
        [
            *in_both * bool(shared),
            *_counted_alike(a, b),
            *_of_curves(found),
            *_one_sided(found),
            *_luck(found),
            *_far(found),
        ],
    )


OTHERWISE = 1.25
"""Ratio of two families' FLOPs per 6·N·D above which they count FLOPs by different conventions."""


def _counted_alike(a: Runs, b: Runs) -> list[str]:
    """Return a warning if the families count FLOPs by different conventions, as far as sizes and tokens show it."""
    times = []
    for runs in (a, b):
        if runs.design.params_active is None or runs.design.tokens is None:
            return []
        least = FLOPS_PER_PARAM_AND_TOKEN * runs.design.params_active * runs.design.tokens
        times.append(float(np.median(runs.design.flops / least)))
    if max(times) <= OTHERWISE * min(times):
        return []
    return [
        f"A's FLOPs are {times[0]:.3g} times 6·params_active·tokens and B's {times[1]:.3g} times: if they are counted "
        f"in different ways, the leverage is off by that."
    ]


def _of_curves(found: Between) -> list[str]:
    """Return warnings about the fits, and the reason if there is no interval."""
    fits = (("A", found.curve), ("B", found.against))
    # The remedy of a fit names options of `moejax fit`.
    said = [f"{name}: {one}" for name, fit in fits for one in fit.warnings if one != fit.remedy]
    for (name, _), alone, one in zip(fits, found.without_asymptote, found.budgets, strict=True):
        if alone:
            said.append(
                f"{name} was trained at {counted(len(one.runs), 'budget')}, too few to fit an irreducible loss: its "
                f"curve is a power law that falls to 0. Give the value of a larger fit, as in --fix irreducible=1.6."
            )
    for why in dict.fromkeys(filter(None, found.unknown)):
        at = listed([f"{flops:.3g}" for flops, reason in zip(found.flops, found.unknown, strict=True) if reason == why])
        said.append(
            f"The leverage at {at} FLOPs has no interval: {why}. Train the family whose curve this is at more budgets, "
            f"farther apart."
        )
    return said


NEAR = f"within {in_percent(NEAR_LOSS)} of its lowest loss"


def _in_words(found: BudgetLosses) -> str:
    """Return how the loss of a family at each budget was determined."""
    smoothed, every = int(found.smoothed.sum()), len(found.smoothed)
    minimum, lowest = (
        f"the minimum of a quadratic in log {found.size} through its runs {NEAR}",
        "the run of lowest loss",
    )
    if smoothed in (0, every):
        how = f"of each of {every} budgets {minimum if smoothed else lowest}"
    else:
        how = f"of {smoothed} of {every} budgets {minimum}, of the others {lowest}"
    return f"{how}; {_runs(found)} a budget.{_left_out(found)}"


def _left_out(found: BudgetLosses) -> str:
    if not len(found.left_out):
        return ""
    flops = [format(each) for each in found.left_out]
    which = f"at {listed(flops)}" if len(flops) < 4 else f"of {flops[0]} to {flops[-1]}"
    return (
        f" {counted(len(flops), 'budget')} {which} FLOPs took no part: the best size lies beyond the sizes that were "
        f"tried."
    )


def _one_sided(found: Between) -> list[str]:
    """Return warnings if the loss of a budget may not be minimal, judged by the trained sizes."""
    said = []
    for name, one in zip("AB", found.budgets, strict=True):
        if one.size and not one.smoothed.any():
            said.append(
                f"{name}: no budget has three sizes near its lowest loss, so nothing says that its runs are the best "
                f"for their FLOPs. The leverage and its interval are of the sizes that were trained: of a family that "
                f"was trained at worse ones it is too small."
            )
        if ends := int(one.at_an_end.sum()):
            said.append(
                f"{name}: at {ends} of {counted(len(one.counts), 'budget')} the lowest loss is at the smallest or the "
                f"largest size that was tried, so a lower one may lie beyond and {name} may be better than is told. "
                f"Train sizes on both sides of the best, or fit a law and ask `moejax leverage … --law FIT`."
            )
    return said


def _runs(found: BudgetLosses) -> str:
    least, most = int(found.counts.min()), int(found.counts.max())
    return counted(most, "run") if least == most else f"{least} to {most} runs"


def _luck(found: Between) -> list[str]:
    """Return a warning about selection bias: the lowest of many losses is lower than that of few, if one family has
    more runs.
    """
    a, b = found.budgets
    if abs(a.lowest_of - b.lowest_of) < 1:
        return []
    if all(one.size for one in found.budgets):
        remedy = f"Train three sizes or more {NEAR} at each budget"
    else:
        remedy = f"Give the sizes of the runs ({SIZES[0]} or {SIZES[-1]})"
    return [
        f"A budget's loss is {_of_a_budget(a)} in A, and {_of_a_budget(b)} in B. The lowest of more runs is luckier, "
        f"and the leverage and its interval lean to {'A' if a.lowest_of > b.lowest_of else 'B'}. {remedy}: the minimum "
        f"of a quadratic through them has no such luck."
    ]


def _of_a_budget(found: BudgetLosses) -> str:
    if found.smoothed.all():
        return f"a quadratic's through {_runs(found)}"
    lowest = int((~found.smoothed).sum())
    where = f" (at {lowest} of {len(found.counts)} budgets)" if found.smoothed.any() else ""
    return f"the lowest of {_runs(found)}{where}"


def _far(found: Between) -> list[str]:
    """Return a warning about the extrapolation of each family's curve."""
    parts = []
    for name, times in zip("AB", found.beyond, strict=True):
        above, below = times[times > 1], times[times < 1]
        parts += [f"{name}'s up to {above.max():.3g} times above its largest"] if len(above) else []
        parts += [f"{name}'s down to {1 / below.min():.3g} times below its smallest"] if len(below) else []
    if not parts:
        return []
    return [
        f"Loss-compute curves are read beyond the budgets of their runs, {listed(parts)}: an extrapolation, and "
        f"intervals know nothing of how the curves bend there."
    ]


def _under_a_law(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    arguments.constants = None
    name, law, known = law_and_source(arguments)
    if isinstance(law, FormulaLaw):
        return _under_a_formula(arguments, law, known)
    if "loss" not in law.outputs:
        raise UserError(f"The law {type(law).__name__} predicts no loss to compare at; ask it with `moejax predict`.")
    a, b = (_family(text, law) for text in (arguments.a, arguments.b))
    if not (a or b):
        raise UserError(
            f"{called(type(law))} reads {listed(law.inputs)} alone, in which {arguments.a} and {arguments.b} do not "
            f"differ as families; ask a law that reads experts or total parameters, such as zhao or abnar."
        )
    likely = fit_resamples(arguments, known) if arguments.runs else None
    likely = likely if likely is None or known.converged else None
    rows, warnings, optima = [], [], []
    for flops in arguments.flops:
        found = leverage(law, a, b, flops)
        optima += [found.family, found.against]
        ends = None if likely is None else interval(resampled(found, likely.laws), arguments.level)
        probes = None if likely is None else likely.probes
        if probes is not None and ends is not None and probes.moved(resampled(found, probes.laws), ends):
            warnings.append(
                f"The leverage at {flops:.3g} FLOPs has no interval: it rests on coefficients that the runs do not "
                f"determine ({', '.join(known.not_determined)})."
            )
            ends = None
        rows.append(_row(flops, found.value, ends and ends.low, ends and ends.high))
    if far := beyond_in_words(beyond(known, *optima)):
        warnings.append(f"The families lie beyond what the law was fitted to: {', '.join(far)}.")
    return rows, [f"law: {name}; both families at the sizes that are best for them."], warnings


def _under_a_formula(
    arguments: argparse.Namespace, law: FormulaLaw, known: FitResult
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return the leverage by a fitted formula, with intervals by the fit's own covariance."""
    if arguments.runs:
        raise UserError("Leverage by a formula has intervals from the fit's own covariance; leave --runs out.")
    a, b = (
        tuple(held_by(type(law), _given(text), letter).items())
        for letter, text in (("A", arguments.a), ("B", arguments.b))
    )
    rows, warnings = [], []
    for flops in arguments.flops:
        functional = FormulaLeverage(a, b, flops)
        spread = known.spread(functional)
        (value,), (low,), (high,) = spread.middle, *spread.ends(arguments.level, True)
        rows.append(_row(flops, value, low, high))
        if spread.unknown[0] and value == value:
            warnings.append(f"The leverage at {flops:.3g} FLOPs has no interval: {spread.unknown[0]}.")
        far = outside({"flops": flops}, known.fitted) | outside({"flops": flops * value}, known.fitted)
        warnings += [f"At {flops:.3g} FLOPs: {sentence}" for sentence in sentences(far)]
    notes = [f"law: {law.formula.text}"]
    if any(row["leverage"] is None for row in rows):
        notes.append("Undefined where B reaches A's loss within no factor of 9 million of the budget.")
    return rows, notes, warnings


def _given(text: str) -> dict[str, float]:
    return {name: parse(value) for name, value in pairs(text.split(","), text)}


def _family(text: str, law: Any) -> Any:
    """Return the limits of a family: the quantities that it holds."""
    if "=" in text:
        return held({name.replace("-", "_"): value for name, value in _given(text).items()})
    return held(proportions(law, find(text).architecture))


def _row(flops: float, value: Any, low: Any, high: Any) -> dict[str, Any]:
    plain = {"flops": flops, "leverage": value, "low": low, "high": high}
    return {name: None if v is None or v != v else float(v) for name, v in plain.items()}
