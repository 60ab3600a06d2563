"""``moejax leverage``: how many times the compute one family needs to be as good as another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from moejax.cli.commands.design import fit_resamples, law_and_source
from moejax.cli.commands.run_table_options import read_table
from moejax.cli.number import pairs
from moejax.design.constraint import held
from moejax.design.decide import beyond
from moejax.design.leverage import leverage, proportions, resampled
from moejax.errors import UserError
from moejax.fit.leverages import leverage_of
from moejax.interval import check_level, in_percent, interval
from moejax.laws import called
from moejax.laws.catalogue import find
from moejax.laws.design import Design
from moejax.laws.predict import beyond_in_words, check_scale
from moejax.quantities import format, parse
from moejax.report import render
from moejax.result import Column, Result, Table
from moejax.run_sources.source import has_prefix, with_condition
from moejax.wording import listed


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    check_level(arguments.level)
    for flops in arguments.flops or ():
        check_scale(Design(flops=flops))
    rows, notes, warnings = _under_a_law(arguments) if arguments.law else _of_tables(arguments)
    columns = (Column("flops", format), Column("leverage", ".3g"), Column(f"{in_percent(arguments.level)} interval"))
    cells = [
        [
            row["flops"],
            "undefined" if row["leverage"] is None else row["leverage"],
            "" if row["low"] is None else f"[{row['low']:.3g}, {row['high']:.3g}]",
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
        if not has_prefix(path) and not Path(path).exists():
            raise UserError(f"There is no table {path}. Give tables of runs, or a --law for {text}.")
        given = argparse.Namespace(**vars(arguments))
        given.runs, given.where = path, [*arguments.where, *([condition] if condition else [])]
        families.append(read_table(given, ("flops",)).runs)
    a, b = families
    at = None if arguments.flops is None else np.asarray(arguments.flops)
    found = leverage_of(a, b, at, level=arguments.level, seed=arguments.seed)
    rows = [_row(*numbers) for numbers in zip(found.flops, found.value, found.low, found.high, strict=True)]
    warnings = [f"{name}: {said}" for name, fit in (("A", found.curve), ("B", found.against)) for said in fit.warnings]
    undefined = any(row["leverage"] is None for row in rows)
    return rows, ["Undefined where A's loss lies below all that B's loss-compute curve reaches."] * undefined, warnings


def _under_a_law(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    arguments.constants = None
    name, law, known = law_and_source(arguments)

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
        if probes is not None and probes.moved(resampled(found, probes.laws)):
            warnings.append(
                f"The leverage at {flops:.3g} FLOPs has no interval: it rests on coefficients that the runs do not "
                f"determine ({', '.join(known.not_determined)})."
            )
            ends = None
        rows.append(_row(flops, found.value, ends and ends.low, ends and ends.high))
    if far := beyond_in_words(beyond(known, *optima)):
        warnings.append(f"The families lie beyond what the law was fitted to: {', '.join(far)}.")
    return rows, [f"law: {name}; both families at the sizes that are best for them."], warnings


def _family(text: str, law: Any) -> Any:
    """The limits of a family: what it holds."""
    if "=" in text:
        return held({name.replace("-", "_"): parse(value) for name, value in pairs(text.split(","), text)})
    return held(proportions(law, find(text).architecture))


def _row(flops: float, value: Any, low: Any, high: Any) -> dict[str, Any]:
    plain = {"flops": flops, "leverage": value, "low": low, "high": high}
    return {name: None if v is None or v != v else float(v) for name, v in plain.items()}
