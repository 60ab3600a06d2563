"""List laws, show a law with its published constants, and predict a design with laws and fits."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from moejax.errors import UserError
from moejax.laws import ALIASES, LAWS, PUBLISHED, law_name
from moejax.laws.budget.peak_rate import LAWS as PEAK_RATES
from moejax.laws.budget.peak_rate import PeakRate, peak_rate
from moejax.laws.design import FIELDS, Design, known
from moejax.laws.law import PROVENANCE, coefficients
from moejax.laws.predict import AS_DENSE, beyond_in_words, law_and_constants, predict, published
from moejax.quantities import format
from moejax.result import Column, Result, Table
from moejax.wording import did_you_mean, told

if TYPE_CHECKING:
    from moejax.fit.fit_result import FitResult


def describe(name: str) -> dict[str, Any]:
    """Return a law's form, constants and sources as plain data, keyed by name.

    Raises:
      UserError: the law is unknown; the message lists the nearest names.
    """
    law = law_name(name)
    cls: Any = LAWS[law]
    return {
        "law": law,
        "aliases": [alias for alias, known in ALIASES.items() if known == law],
        "statement": inspect.cleandoc(cls.__doc__).replace("``", ""),
        "inputs": list(cls.inputs),
        "outputs": dict(cls.outputs),
        "coefficients": {
            f.name: {"symbol": f.metadata["symbol"], "meaning": f.metadata["meaning"]} for f in dataclasses.fields(cls)
        },
        "constants": {
            key: {
                "values": {name: _plain(value) for name, value in coefficients(p.law).items()},
                "source": p.source,
                "provenance": p.provenance,
                "data": p.data,
                "fitted": {variable: list(bounds) for variable, bounds in p.fitted.items()},
                "dense": p.dense,
                "remark": p.remark,
            }
            for key, p in PUBLISHED[law].items()
        },
    }


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else float(value)


def every_law() -> Result:
    """Return a table of all laws."""
    every = [describe(name) for name in LAWS]
    columns = (
        Column("law", words=True, value="law"),
        Column("also called", words=True, value=lambda law: ", ".join(law["aliases"])),
        Column("reads", words=True, value=lambda law: ", ".join(law["inputs"])),
        Column("predicts", words=True, value=lambda law: ", ".join(law["outputs"])),
        Column("constants", words=True, value=lambda law: ", ".join(law["constants"]) or "none published"),
    )
    notes = ["`moejax laws show NAME` prints the form, its source and its constants."]
    return Result(tables=[Table.of("Laws", columns, every)], notes=notes, data=every)


def one_law(name: str) -> Result:
    """Return a law's form, coefficients and published constants as tables."""
    law = describe(name)
    sets = law["constants"]
    outputs = "; ".join(f"{output} ({unit})" for output, unit in law["outputs"].items())
    rows = [
        [c["symbol"], key, *(_text(s["values"].get(key)) for s in sets.values()), c["meaning"]]
        for key, c in law["coefficients"].items()
    ]
    columns = [Column("symbol"), Column("name", words=True), *map(Column, sets), Column("meaning", words=True)]
    notes = []
    for key, s in sets.items():
        notes.append(f"{key}: {s['source']} ({s['provenance']}: {PROVENANCE[s['provenance']]}).")
        notes += [f"  data: {s['data']}"] if s["data"] else []
        notes += [
            f"  fitted for {variable} between {format(low)} and {format(high)}"
            for variable, (low, high) in s["fitted"].items()
        ]
        notes += ["  fitted to dense models alone"] if s["dense"] else []
        notes += [f"  {s['remark']}"] if s["remark"] else []
    lead = [*law["statement"].splitlines(), "", f"reads     {', '.join(law['inputs'])}", f"predicts  {outputs}"]
    return Result(
        title=law["law"],
        tables=[Table("", notes=lead), Table("Coefficients", columns, rows)],
        notes=notes or ["No constants are published; fit the law to runs with `moejax fit`."],
        data=law,
    )


def _text(value: Any) -> str:
    if value is None:
        return "chosen"
    return f"{value:.6g}" if isinstance(value, float) else " ".join(_text(v) for v in value)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The prediction of a law with one set of constants for a design."""

    law: str
    constants: str
    source: str
    provenance: str
    values: Mapping[str, float | None]
    """Predicted values, keyed by output."""
    units: Mapping[str, str]
    extrapolated: Mapping[str, float]
    """Ratio to the nearest bound of the fitted range, for each variable outside this range."""
    unchecked: tuple[str, ...]
    """Variables without a fitted range."""
    params_effective: float | None
    remark: str
    as_dense: bool = False
    """True if constants fitted only to dense models predict an MoE model."""
    interval: Mapping[str, float] | None = None
    dropped: tuple[str, ...] = ()


def ask(name: str, constants: str | None, design: Design) -> Answer:
    """Return the prediction of one set of published constants."""
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
    """Return the predictions of all published constants, and the reasons why other laws were not evaluated, keyed by
    law."""
    answers, unasked = [], {}
    for law in LAWS:
        try:
            answers += [ask(law, constants, design) for constants in PUBLISHED[law]]
            if not PUBLISHED[law]:
                unasked[law] = "no constants are published; fit it to runs"
        except ValueError as why:
            unasked[law] = told(why)
    if not answers:
        raise UserError(
            "No law can predict from these values alone; give --arch NAME --tokens N, or --params-active N …."
        )
    return answers, unasked


def ask_fit(file: str, design: Design) -> Answer:
    """Return the prediction of a fitted law with its interval."""
    # Reading a fit imports the fitting code, which published laws do not need.
    from moejax.fit.fit_result import load_of_runs
    from moejax.laws.formula_law import FormulaLaw

    fit = load_of_runs(file)
    if unread := [name for name in design.columns or () if name not in fit.law.inputs]:
        letters = dict(fit.law.formula.columns) if isinstance(fit.law, FormulaLaw) else {}
        if (ours := letters.get(unread[0], "")) in FIELDS:
            raise UserError(f"The formula's {unread[0]} is {ours}; give --{ours.replace('_', '-')}.")
        raise UserError(f"The law of {file} reads no column {unread[0]}; {did_you_mean(unread[0], fit.law.inputs)}")
    said, ranged = predict(fit, design), interval_of(fit, design)
    # A predicted share outside 0 to 1 is invalid.
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
        remark=" ".join([interval_in_words(fit, ranged, beyond=bool(said.extrapolated)), *fit.warnings, *fit.dropped]),
    )


class RunInterval(NamedTuple):
    """The prediction interval of one new run from a stored fit."""

    interval: dict[str, float] | None
    """Bounds ``low`` and ``high``, and ``level``; None if unknown."""
    why_none: str = ""
    """Sentence with the reason if there is no interval."""


def interval_of(fit: FitResult, design: Design, level: float = 0.9) -> RunInterval:
    """Return the prediction interval of a new run from a stored fit, or the reason why the fit gives none."""
    if fit.uncertainty is None:
        said = "The file has no covariance, and so no prediction intervals; fit again with moejax fit --out."
        return RunInterval(None, said)
    if not fit.uncertainty.axes:
        # The fit's warnings give the reason.
        return RunInterval(
            None, "The fit has no covariance, and so no prediction intervals; its warnings give the reason."
        )
    predicted = fit.prediction_intervals(design, level)
    if predicted.unknown[0]:
        return RunInterval(None, f"There is no prediction interval for this run: {predicted.unknown[0]}.")
    low, high = float(predicted.low[0]), float(predicted.high[0])
    if not (math.isfinite(low) and math.isfinite(high)):
        return RunInterval(None, "The prediction interval of this run is not finite.")
    return RunInterval({"low": low, "high": high, "level": level})


def interval_in_words(fit: FitResult, ranged: RunInterval, *, beyond: bool) -> str:
    """Return the interval as a sentence, or the reason for a missing interval.

    Args:
      beyond: True if the run is larger or smaller than all fitted runs.
    """
    from moejax.fit.uncertainty.estimates import IF_THE_FORM_HOLDS
    from moejax.interval import in_percent

    if ranged.interval is None:
        return ranged.why_none
    ends = f"[{ranged.interval['low']:.5g}, {ranged.interval['high']:.5g}]"
    article = "an" if fit.output[0] in "aeiou" else "a"
    said = (
        f"{in_percent(ranged.interval['level'])} of such runs have {article} {fit.output.replace('_', ' ')} in {ends}, "
        f"{fit.method} and the scatter of the fitted runs"
    )
    return f"{said}, {IF_THE_FORM_HOLDS}." if beyond else f"{said}."


def summary(
    design: Design,
    answers: Sequence[Answer],
    unasked: Mapping[str, str],
    assumed: str,
    as_counted: Design | None = None,
) -> Result:
    """Return the laws' predictions as a table; if any law predicts a learning rate, add the recommended rate with the
    lowest and highest rate to try.

    Args:
      as_counted: the design with FLOPs by the convention of learning-rate laws (``peak_rate.counted``), if known.
    """
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
    note = "Losses of different laws refer to different data and tokenizers. Compare designs under one law."
    if len(answers) == 1:
        note = f"{answers[0].source} ({answers[0].provenance}). {answers[0].remark}".rstrip()
    notes = [note, *([assumed] if assumed else []), *([AS_DENSE] if any(a.as_dense for a in answers) else [])]
    rate = _rate(as_counted or design, answers)
    notes += [rate.sentence] if rate else []
    given = {name: value for name, value in known(design).items() if name in (*FIELDS, *(design.columns or {}))}
    return Result(
        title="design: " + ", ".join(f"{name} {format(value)}" for name, value in given.items()),
        tables=[Table("Predictions", columns, rows)],
        notes=notes,
        data={"design": given, "predictions": [asdict(a) for a in answers], "not_asked": dict(unasked)}
        | ({"active_convention": assumed} if assumed else {})
        | ({"learning_rate": rate.to_json()} if rate else {}),
    )


def _rate(design: Design, answers: Sequence[Answer]) -> PeakRate | None:
    """Return the recommended learning rate, from the law or fit if there is only one, otherwise from the default law.
    Return None if no law predicts a rate.
    """
    asked = [one for one in answers if one.values.get("learning_rate") is not None]
    if not asked:
        return None
    if len(answers) > 1:
        return peak_rate(design)
    (one,) = asked
    return peak_rate(design, one.constants, own=None if one.constants in PEAK_RATES else one.values["learning_rate"])


def _distance(answer: Answer) -> str:
    words = beyond_in_words(answer.extrapolated)
    if answer.as_dense:
        words.insert(0, "dense models alone")
    if answer.unchecked:
        words.append(f"unknown for {', '.join(answer.unchecked)}")
    return "; ".join(words) or "within"
