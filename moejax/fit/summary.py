"""Build the ``Result`` of a fit and its answers, which ``moejax fit`` prints and ``moejax report`` shows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from moejax.fit.answers import Answers, Decisive, Profiled
from moejax.fit.fit_result import HELD_OUT, FitResult
from moejax.fit.selection import holdout
from moejax.fit.selection.held_out_runs import TestedRuns
from moejax.fit.selection.holdout import SplitErrors
from moejax.fit.selection.metrics import Metrics
from moejax.fit.sweeps.ways_through_sweeps import Sweeps, WayCoefficient
from moejax.fit.uncertainty.bootstrap import ResampledCoefficients
from moejax.fit.uncertainty.estimands import what_is_decided
from moejax.fit.uncertainty.estimates import IF_THE_FORM_HOLDS, Estimate, RunPrediction
from moejax.fit.uncertainty.extrapolation import sentences
from moejax.fit.uncertainty.uncertainty import STANDARD
from moejax.interval import OPEN, Interval, in_percent
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.law import unit_of
from moejax.quantities import format
from moejax.result import LOW_HIGH, NOT_DETERMINED, Column, Result, Table, Written, percent
from moejax.wording import argument, listed, option_hint


def summary(fit: FitResult, level: float = 0.9, answers: Answers | None = None) -> Result:
    """Return the fit, its coefficients with standard errors and intervals at ``level``, and the requested answers."""
    answers, alone = with_held_out(fit, answers), dataclasses.replace(fit, held_out=None).summary(level)
    tested = answers.held_out_runs
    return dataclasses.replace(
        alone,
        lead=lead(fit, answers),
        warnings=[
            *extrapolations(answers),
            *(holdout.warnings(answers.held_out, fit.output, tested and tested.outside) if answers.held_out else ()),
            *(() if answers.sweeps is None else answers.sweeps.warnings),
            *alone.warnings,
        ],
        tables=sorted([*alone.tables, *tables(answers, fit.output)], key=lambda table: table.key != DECISIONS),
        for_latex=[
            *alone.for_latex,
            *latex_decisions(answers.decisions if any(one.given for one in answers.decisions) else ()),
        ],
        data=alone.data | answers.to_json(),
    )


def with_held_out(fit: FitResult, answers: Answers | None) -> Answers:
    """Return the answers with the errors on held-out runs that the fit contains, if the answers have none."""
    answers = answers or Answers()
    if fit.held_out is None or answers.held_out:
        return answers
    return dataclasses.replace(answers, **{name: getattr(fit.held_out, name) for name in HELD_OUT})


def lead(fit: FitResult, answers: Answers) -> list[str]:
    """Return a sentence per given budget that states which run to train; without budgets, a sentence on how to give
    one."""
    decided: dict[str, list[Estimate]] = {}
    for one in answers.decisions:
        if one.given:
            decided.setdefault(one.where, []).append(one)
    if not decided:
        largest = _largest_flops(fit)
        said = what_is_decided(type(fit.law))
        if largest and "flops=…" in said:
            example = f"{10 * largest:.0e}".replace("+", "")
            said = f"{said.replace('flops=…', f'flops={example}')} The budget of {example} FLOPs is an example."
        return [f"What to train: {said}"]
    return [
        f"At {where}: {'; '.join(map(_in_words, each))}{_few(each)}{_method(each)}." for where, each in decided.items()
    ]


def extrapolations(answers: Answers) -> list[str]:
    """Return a warning for each decision and prediction outside the fitted runs."""
    return [
        f"Extrapolation at {one.where or 'the coefficients alone'}. {' '.join(sentences(one.times))}"
        for one in answers.beyond
    ]


def _method(decisions: Sequence[Estimate]) -> str:
    methods = dict.fromkeys(one.by for one in decisions if one.interval and not one.interval.uninformative)
    return f" (intervals: {listed(methods)})" if methods else ""


def _few(decisions: Sequence[Estimate]) -> str:
    few = dict.fromkeys(one.few for one in decisions if one.without_interval)
    return f"; no intervals: {listed(few)}" if few else ""


def _largest_flops(fit: FitResult) -> float | None:
    ranges = {name: high for name, (_, high) in fit.fitted.items()}
    if {"params_active", "tokens"} <= {*ranges}:
        return FLOPS_PER_PARAM_AND_TOKEN * ranges["params_active"] * ranges["tokens"]
    return ranges.get("flops")


def _in_words(one: Estimate) -> str:
    if math.isnan(one.value):
        return f"{one.label} has no answer" + (f", because {one.reason}" if one.reason else "")
    if one.is_constant:
        return f"{one.label} {format(one.value)} ({one.reason})"
    if one.without_interval:
        return f"{one.label} {format(one.value)}"
    if one.interval is None or one.interval.uninformative:
        why = f", because {one.reason}" if one.reason else f": {one.interval.bounds()}" if one.interval else ""
        return f"{one.label} is {NOT_DETERMINED}{why} (the fit has {format(one.value)})"
    return f"{one.label} {format(one.value)}, {in_percent(one.level)} interval {one.interval.bounds()}"


DECISIONS = "decisions"
"""Key of the decisions table, which is shown first."""


def tables(answers: Answers, output: str = "loss") -> list[Table]:
    """Return the tables of the answers, in reading order."""
    return [*_tables(answers, output)]


def _tables(answers: Answers, output: str) -> Iterator[Table]:
    if answers.decisions:
        yield _decisions(answers.decisions)
    if answers.held_out:
        yield held_out(answers.held_out, answers.held_out_together, output)
    if answers.held_out_runs is not None:
        yield _tested(answers.held_out_runs)
    if answers.sweeps is not None:
        yield _sweeps(answers.sweeps)
    if answers.bootstrap is not None:
        # The coefficients of the fit have the intervals.
        yield resampled(answers.bootstrap, with_intervals=False)
    if answers.predictions:
        yield _predictions(answers.predictions, [one.given for one in answers.beyond])
    if answers.profiles:
        yield Table.of("Profiles", PROFILE, answers.profiles, key="profiles")
    if answers.influence:
        yield _influence(answers.influence)


def _five(value: float) -> str:
    return format(value, 5)


def held_out(splits: Sequence[SplitErrors], together: Metrics | None = None, output: str = "loss") -> Table:
    """Return a table of each split's errors, and of the errors over all splits."""
    rows = [[one.name, *_errors(one.errors), one.fitted.rmse] for one in splits]
    if together is not None:
        rows.append(["all of these", *_errors(together), None])
    columns = (
        Column("held out"),
        Column("runs"),
        *(Column(name, ".5f") for name in ("MAE", "RMSE", "R²")),
        Column("Huber", ".3g"),
        Column("largest", percent(3)),
        Column("RMSE fitted", ".5f"),
    )
    return Table(f"Errors on runs that were not fitted, {unit_of(output)}", columns, rows, key="held-out")


def _errors(of: Metrics) -> list[int | float]:
    return [of.runs, of.mae, of.rmse, of.r_squared, of.huber, of.max_relative_error]


FARTHEST = 12
"""Number of held-out runs shown in the terminal; the file has all of them."""


def _tested(tested: TestedRuns) -> Table:
    several, coverage = tested.runs["split"].nunique() > 1, tested.coverage
    shown = tested.farthest(FARTHEST)
    columns = {
        "run": Column("run", words=True),
        **({"split": Column("held out", words=True)} if several else {}),
        **{name: Column(name, _five) for name in ("measured", "predicted", "low", "high")},
        "half_ranges": Column("half-widths", "+.2f"),
    }
    notes = [("! " if coverage.too_few else "") + coverage.sentence]
    if len(tested.runs) > len(shown):
        notes.append(
            f"This table shows the {len(shown)} of {len(tested.runs):,} runs that are farthest from their predictions; "
            f"held_out.csv{option_hint(' (--out)')} has all of them."
        )
    reasons = filter(None, dict.fromkeys(tested.runs["reason"]))
    notes += [f"! Some runs have no prediction interval: {why}." for why in reasons]
    unit = unit_of(tested.output)
    title = f"Runs that were not fitted{f', {unit}' if unit else ''}: {in_percent(coverage.level)} prediction intervals"
    return Table(title, [*columns.values()], shown[[*columns]].to_numpy().tolist(), notes, key="held-out-runs")


def resampled(resamples: ResampledCoefficients, *, with_intervals: bool = True) -> Table:
    """Return a table of the coefficients' standard deviations, medians and intervals over resamples."""
    columns = [Column("coefficient"), Column("standard deviation", ".4g"), Column("median", ".4g")]
    columns += [Column(f"{in_percent(resamples.level)} interval", keys=LOW_HIGH)] if with_intervals else []
    rows = []
    for name, one in resamples.coefficients.items():
        interval = [_bounds(one, "{:.4g}".format)] if with_intervals else []
        rows.append([name, one.deviation, one.middle, *interval, _verdict(one)])
    notes = [f"! {resamples.few}: these intervals are too small."] if resamples.few else []
    if resamples.unfinished:
        notes.append(_unfinished(resamples.unfinished, resamples.resamples))
    title = f"Coefficients by bootstrap of {resamples.resamples:,} resamples by {resamples.by}"
    return Table(title, [*columns, VERDICT], rows, notes, key="resamples")


VERDICT = Column("", keys=("verdict",), value=lambda one: _verdict(one.interval))
"""Column with ``NOT_DETERMINED`` for uninformative intervals."""


def _bounds(interval: Interval | None, write: Callable[[float], str] = format) -> Written | None:
    return None if interval is None else Written((interval.low, interval.high), interval.bounds(write))


def _verdict(interval: Interval | None) -> str:
    return NOT_DETERMINED if interval is not None and interval.uninformative else ""


MANY_UNFINISHED = 0.1
"""Share of unfinished resamples above which the intervals describe the search and not the runs."""


def _unfinished(unfinished: int, resamples: int) -> str:
    said = f"! {unfinished} of {resamples:,} resamples were stopped before they converged"
    if unfinished <= MANY_UNFINISHED * resamples:
        return f"{said}; their coefficients were still changing along directions that these runs do not determine."
    return (
        f"{said}, so the intervals show how far the searches went, and may be wider or narrower than the runs allow. "
        f"Fix a coefficient that is not determined ({argument('fixed')}), or fit a law with fewer coefficients."
    )


def _sweeps(sweeps: Sweeps) -> Table:
    columns = (Column("coefficient"), *_way_columns(sweeps))
    each = [way.coefficients for way in sweeps.ways.values()]
    names = dict.fromkeys(name for one in each for name in one)
    rows = [[name, *(_with_ends(one.get(name)) for one in each)] for name in names]
    title = f"Coefficients from three reductions of the sweeps, with {in_percent(sweeps.level)} intervals {STANDARD}"
    return Table(title, columns, rows, key="sweeps")


def _way_columns(sweeps: Sweeps) -> Iterator[Column]:
    for name, way in sweeps.ways.items():
        key = name.replace(" ", "_")
        yield Column(f"{name} ({way.runs})", keys=(key, f"{key}_low", f"{key}_high"))


def _with_ends(one: WayCoefficient | None) -> Written | None:
    if one is None:
        return None
    low, high = ("–" if end is None else format(end) for end in (one.low, one.high))
    return Written((one.value, one.low, one.high), f"{format(one.value)} [{low}, {high}]")


def _decisions(decisions: Sequence[Estimate]) -> Table:
    by, level = next(((one.by, one.level) for one in decisions if one.interval), ("", 0.0))
    columns = (
        Column("decided", value="label"),
        Column("at", words=True, value="where"),
        Column(
            "value", format, value=lambda one: Written(one.value, "no answer") if math.isnan(one.value) else one.value
        ),
        Column("std err", lambda value: format(value, 3), value=_error),
        *([Column("df", ".2g", value="degrees_of_freedom")] if by == STANDARD else []),
        Column(f"{in_percent(level)} interval, {by}", keys=LOW_HIGH, value=lambda one: _bounds(one.interval)),
        VERDICT,
    )
    few = dict.fromkeys((one.few, "" if one.without_interval else " by resamples") for one in decisions if one.few)
    notes = [f"! {words}: intervals{by} would be too small and are not shown." for words, by in few]
    if by == STANDARD:
        notes.append("Intervals are Student's t with df degrees of freedom.")
    notes += [
        f"! At {where} the decision assumes {assumed}."
        for where, assumed in dict.fromkeys((one.where, one.assumes) for one in decisions if one.assumes)
    ]
    return Table.of("Decisions", columns, decisions, [*notes, *_reasons(decisions)], key=DECISIONS)


def latex_decisions(decisions: Sequence[Estimate]) -> list[Table]:
    """Return the decisions as a table for LaTeX; no table if there are none."""
    if not decisions:
        return []
    by, level = next(((one.by, one.level) for one in decisions if one.interval), ("", 0.0))
    columns = (
        Column("decided", symbol=True, value="symbol"),
        Column("at", words=True, value="where"),
        Column("value", format, value="value"),
        Column(f"{in_percent(level)} interval, {by}", value=lambda one: one.interval and one.interval.bounds()),
    )
    return [Table.of("Decisions", columns, decisions)]


def _error(one: Estimate) -> float | Written:
    if math.isnan(one.value) or one.error > 0:
        return one.error
    if one.is_constant:
        return Written(0.0, "constant")
    return Written(None, "at a bound" if one.at_a_bound else NOT_DETERMINED if one.reason else "not known")


def _reasons(answers: Sequence[Estimate | RunPrediction]) -> list[str]:
    told: dict[tuple[str, str, str], list[str]] = {}
    for one in answers:
        if one.reason and not (isinstance(one, Estimate) and one.is_constant):
            lacking = "answer" if math.isnan(one.value) else "interval"
            told.setdefault((lacking, one.where, one.reason), []).append(one.label)
    return [
        f"! There is no {lacking} for {listed(names)}{f' at {where}' if where else ''}: {why}."
        for (lacking, where, why), names in told.items()
    ]


def _predictions(predictions: Sequence[RunPrediction], far: Sequence[object]) -> Table:
    columns = (
        Column("predicted", value="label"),
        Column("at", words=True, value="where"),
        *(Column(name, _five, value=name) for name in ("low", "value", "high")),
        Column("variance from coefficients", percent(0), value="from_coefficients"),
    )
    held = [one for one in predictions if one.given in far and not one.reason]
    notes = [f"The prediction interval at {one.where} holds {IF_THE_FORM_HOLDS}." for one in held]
    notes += _reasons(predictions)
    title, first = "Predicted", predictions[0]
    if not all(one.reason for one in predictions):
        notes.append(f"The remaining variance, which is not from coefficients ({first.by}), is lack of fit.")
        title += f": {in_percent(first.level)} of such runs are between low and high"
    return Table.of(title, columns, predictions, notes, key="predictions")


def _not_rejected(one: Profiled) -> str:
    if one.reason:
        return f"no profile. {one.reason}"
    sides = [f"no {side}" for side, end in {"smaller": one.low, "larger": one.high}.items() if end is None]
    return f"these runs reject {' and '.join(sides)} value" if sides else ""


def _end(end: float | None, one: Profiled, beyond: float) -> float | Written | None:
    return Written(beyond, "open") if end is None and not one.reason else end


PROFILE = (
    Column("asked", value="title"),
    Column("low", _five, value=lambda one: _end(one.low, one, -math.inf)),
    Column("value", _five, value="middle"),
    Column("high", _five, value=lambda one: _end(one.high, one, math.inf)),
    Column("level", percent(0), value="level"),
    Column("", words=True, value=_not_rejected),
)


def _influence(influence: Sequence[Decisive]) -> Table:
    columns = (
        Column("asked"),
        Column("without", words=True),
        *(Column(name, _five) for name in ("refitted", "predicted")),
        Column("change", lambda value: f"{value:+.1%}"),
    )
    return Table("Most influential runs", columns, [row for one in influence for row in _deciding(one)], key="decisive")


def _deciding(one: Decisive) -> Iterator[list[float | str | Written | None]]:
    if one.reason:
        yield [one.title, f"no influence. {one.reason}", None, None, None]
        return
    yield [one.title, "none", one.value, None, None]
    without = [f"row {row} ({run})" for row, run in zip(one.rows, one.runs, strict=True)]
    numbers = [*zip(one.refitted, one.predicted, strict=True), (one.without_all, None)]
    for run, (refit, guess) in zip([*without, "all of these"], numbers, strict=True):
        change = refit / one.value - 1 if refit is not None and one.value else None
        yield ["", run, Written(None, "no answer") if refit is None else refit, guess, change]


def without_intervals(fit: FitResult, intervals: Mapping[str, Interval]) -> list[str]:
    """Return the reasons why quantities of a design's optimum have no interval: the search did not converge, or the
    runs do not determine these quantities.
    """
    if not fit.converged:
        return [
            "The search of this fit did not converge, so its optimum has no intervals and may be wrong; fit again with "
            f"more initial guesses ({argument('starts')})."
        ]
    if fit.not_determined and (names := [name for name, one in intervals.items() if one is OPEN]):
        what = f"{listed(names)} of the optimum depend{'s' if len(names) == 1 else ''}"
        return [
            f"{what} on coefficients that the runs do not determine ({', '.join(fit.not_determined)}). Other "
            f"coefficients that fit equally well give another optimum."
        ]
    return []
