"""Ask published laws or a fit about a design, and show their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from moejax.errors import UserError
from moejax.laws import LAWS, PUBLISHED
from moejax.laws.design import FIELDS, Design, known
from moejax.laws.predict import AS_DENSE, beyond_in_words, law_and_constants, predict, published
from moejax.quantities import format
from moejax.result import Column, Result, Table
from moejax.wording import did_you_mean, told


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The prediction of a law with one set of constants for a design."""

    law: str
    constants: str
    source: str
    provenance: str
    values: Mapping[str, float | None]
    """Predicted values by output."""
    units: Mapping[str, str]
    extrapolated: Mapping[str, float]
    """Ratios to the nearest bound of the fitted range, by variable."""
    unchecked: tuple[str, ...]
    """Variables without a fitted range."""
    params_effective: float | None
    remark: str
    as_dense: bool = False
    """True if the constants were fitted to dense models alone."""
    interval: Any = None
    dropped: tuple[str, ...] = ()


def ask(name: str, constants: str | None, design: Design) -> Answer:
    """Return the prediction of a published law."""
    law, constants = law_and_constants(name, constants)
    chosen = published(law, constants)
    said = predict(chosen, design)
    return Answer(
        law=law,
        constants=constants or next(iter(PUBLISHED[law])),
        source=chosen.source,
        provenance=chosen.provenance,
        values=dict(said.values),
        units=dict(said.units),
        extrapolated=dict(said.extrapolated),
        unchecked=tuple(said.unchecked),
        as_dense=said.as_dense,
        params_effective=said.params_effective,
        remark=chosen.remark,
    )


def ask_all(design: Design) -> tuple[list[Answer], dict[str, str]]:
    """Return the predictions of all published constants, and the reasons why other laws were not evaluated."""
    answers, unasked = [], {}
    for law in LAWS:
        try:
            answers += [ask(law, constants, design) for constants in PUBLISHED[law]]
            if not PUBLISHED[law]:
                unasked[law] = "no constants are published; fit it to runs"
        except ValueError as why:
            unasked[law] = told(why)
    if not answers:
        raise UserError("No law can be asked with so little. Give --arch NAME --tokens N, or --params-active N ….")
    return answers, unasked


def ask_fit(file: str, design: Design) -> Answer:
    """Return the prediction of a fitted law with its interval."""
    # Reading a fit imports the fitting code, which published laws do not need.
    from moejax.fit.fit_result import load_of_runs
    from moejax.fit.uncertainty.estimates import range_in_words, range_of
    from moejax.laws.formula_law import FormulaLaw

    fit = load_of_runs(file)
    if unread := [name for name in design.columns or () if name not in fit.law.inputs]:
        letters = dict(fit.law.formula.columns) if isinstance(fit.law, FormulaLaw) else {}
        if (ours := letters.get(unread[0], "")) in FIELDS:
            raise UserError(f"{unread[0]} in the formula is {ours}; give --{ours.replace('_', '-')}.")
        raise UserError(f"The law of {file} reads no column {unread[0]}; {did_you_mean(unread[0], fit.law.inputs)}")
    said, ranged = predict(fit, design), range_of(fit, design)
    # A share that is not between 0 and 1 is no prediction.
    impossible = {fit.output} if fit.is_share and not 0 < said.values[fit.output] < 1 else set()
    return Answer(
        law=type(fit.law).__name__,
        constants=file,
        source=f"{file}, {fit.metrics.runs} runs",
        provenance="your fit",
        values={name: None if name in impossible else value for name, value in said.values.items()},
        units=dict(said.units),
        params_effective=said.params_effective,
        interval=ranged.interval,
        extrapolated=dict(said.extrapolated),
        unchecked=tuple(said.unchecked),
        dropped=tuple(fit.dropped),
        remark=" ".join([range_in_words(fit, ranged, beyond=bool(said.extrapolated)), *fit.warnings, *fit.dropped]),
    )


def summary(design: Design, answers: Sequence[Answer], unasked: Mapping[str, str], assumed: str) -> Result:
    """Return the laws' answers as a table."""
    rows = []
    for a in answers:
        for i, (output, value) in enumerate(a.values.items()):
            law, constants, beyond = (a.law, a.constants, _distance(a)) if i == 0 else ("", "", "")
            rows.append([law, constants, f"{output.replace('_', ' ')} ({a.units[output]})", value, beyond])
        if a.params_effective:
            rows.append(["", "", "effective parameters, of the dense model with this loss", a.params_effective, ""])
    columns = (
        Column("law"),
        Column("constants", words=True),
        Column("quantity", words=True),
        Column("value", format),
        Column("beyond the fitted range", words=True),
    )
    note = "Losses of different laws are of different data and tokenisers: compare designs under one law."
    if len(answers) == 1:
        note = f"{answers[0].source} ({answers[0].provenance}). {answers[0].remark}".rstrip()
    notes = [note, *([assumed] if assumed else []), *([AS_DENSE] if any(a.as_dense for a in answers) else [])]
    given = {name: value for name, value in known(design).items() if name in (*FIELDS, *(design.columns or {}))}
    return Result(
        title="design: " + ", ".join(f"{name} {format(value)}" for name, value in given.items()),
        tables=[Table("Predictions", columns, rows)],
        notes=notes,
        data={"design": given, "predictions": [asdict(a) for a in answers], "not_asked": dict(unasked)}
        | ({"active_convention": assumed} if assumed else {}),
    )


def _distance(answer: Answer) -> str:
    words = beyond_in_words(answer.extrapolated)
    if answer.as_dense:
        words.insert(0, "dense models alone")
    if answer.unchecked:
        words.append(f"unknown for {', '.join(answer.unchecked)}")
    return "; ".join(words) or "within"
