"""Compute the efficiency leverage between two model families from tables, a law or a fitted formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moejax.design.constraint import held
from moejax.design.decide import Likely, beyond
from moejax.design.leverage import FormulaLeverage, held_by, leverage, leverages_under, proportions
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.sweeps.budget_losses import NEAR_LOSS, SIZES, BudgetLosses
from moejax.fit.sweeps.leverage import Between, leverage_of
from moejax.fit.uncertainty.estimates import intervals
from moejax.fit.uncertainty.extrapolation import outside, sentences
from moejax.fit.uncertainty.uncertainty import STANDARD
from moejax.interval import in_percent
from moejax.laws import called
from moejax.laws.catalogue import find
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import Law
from moejax.laws.predict import beyond_in_words
from moejax.quantities import format
from moejax.result import BLANK, LOW_HIGH, Column, Result, Shown, Table, Written
from moejax.wording import argument, counted, listed


@dataclass(frozen=True)
class BudgetLeverage:
    """The leverage at a budget; undetermined numbers are None."""

    flops: float
    leverage: float | None
    low: float | None
    high: float | None
    a_beyond: float | None = 1.0
    b_beyond: float | None = 1.0
    """Ratio by which each curve is extrapolated beyond the FLOPs of its runs."""


@dataclass(frozen=True, repr=False)
class LeverageTable(Shown):
    """The leverage at every budget, with notes and warnings."""

    rows: Sequence[BudgetLeverage]
    notes: Sequence[str]
    warnings: Sequence[str] = ()
    level: float = 0.9
    """Coverage of the intervals."""
    families: tuple[str, str] = ("A", "B")
    """Names of the families."""
    by: str = ""
    """Method of the intervals, as text after the level; empty without intervals."""

    def summary(self) -> Result:
        """Return a table of the first family's leverage over the second."""
        (a, b), level = self.families, self.level
        columns = (
            Column("flops", format, value="flops"),
            Column("leverage", ".3g", value=lambda row: _or_undefined(row.leverage)),
            Column(
                f"{in_percent(level)} interval, {self.by}".removesuffix(", "),
                keys=LOW_HIGH,
                value=_interval,
            ),
            Column("A beyond", ".3g", value=lambda row: _factor(row.a_beyond)),
            Column("B beyond", ".3g", value=lambda row: _factor(row.b_beyond)),
        )
        table = Table.of(f"FLOPs of {b} per FLOP of {a}, at equal loss", columns, self.rows)
        data = {"a": a, "b": b, "level": level, "by": self.by, "leverage": list(map(asdict, self.rows))}
        return Result(warnings=self.warnings, tables=[table], notes=self.notes, data=data)


def _or_undefined(leverage: float | None) -> float | Written:
    return Written(None, "undefined") if leverage is None else leverage


def _factor(times: float | None) -> float | Written | None:
    return Written(1.0, "") if times == 1 else times


def _interval(row: BudgetLeverage) -> Written:
    return BLANK if row.low is None else Written((row.low, row.high), f"[{row.low:.3g}, {row.high:.3g}]")


def leverage_of_tables(
    a: Runs, b: Runs, flops: Sequence[float] | None, *, fixed: Mapping[str, float], level: float, seed: int
) -> LeverageTable:
    """Return the leverage from the loss-compute curves of two tables, at the budgets ``flops``, by default at those of
    ``a``."""
    shared = len({*zip(a.design.flops, a.loss, strict=True)} & {*zip(b.design.flops, b.loss, strict=True)})
    at = None if flops is None else np.asarray(flops)
    between = leverage_of(a, b, at, fixed=fixed, level=level, seed=seed)
    rows = [
        BudgetLeverage(float(numbers[0]), *map(_known, numbers[1:]))
        for numbers in zip(between.flops, between.value, between.low, between.high, *between.beyond, strict=True)
    ]
    notes = [f"{name}: {_in_words(one)}" for name, one in zip("AB", between.budgets, strict=True)]
    if any(len(np.unique(runs.group)) < len({*zip(runs.group, runs.design.flops, strict=True)}) for runs in (a, b)):
        notes.append(
            "Runs are assumed to scatter independently. Checkpoints of one training run share a random effect, which "
            "intervals do not include."
        )
    if any(row.leverage is None for row in rows):
        notes.append("The leverage is undefined at budgets at which B's loss-compute curve does not reach A's loss.")
    in_both = [
        f"{counted(shared, 'run')} with equal FLOPs and loss {'is' if shared == 1 else 'are'} in both A and B, which "
        "biases the leverage. Give each family a condition that excludes the other's rows."
    ]
    warnings = [
        *in_both * bool(shared),
        *_counted_alike(a, b),
        *_of_curves(between),
        *_one_sided(between),
        *_luck(between),
        *_far(between),
    ]
    return LeverageTable(rows, notes, warnings, level, by=STANDARD)


def leverage_under_law(
    name: str,
    law: Law,
    known: Any,
    families: tuple[str, str],
    given: tuple[Any, Any],
    flops: Sequence[float],
    *,
    resampled: Likely | None = None,
    level: float,
) -> LeverageTable:
    """Return the leverage under a law, with both families at their optimal sizes.

    Args:
      families: names of the families, for messages.
      given: fixed quantities of each family, or None if its name is a published model.
      resampled: bootstrap of the fit for intervals; by default the one that is stored with the fit, if any.
    """
    if "loss" not in law.outputs:
        raise UserError(
            f"The law {type(law).__name__} predicts no loss, so it has no leverage; use it with `moejax predict`."
        )
    a, b = (
        held(proportions(law, find(text).architecture))
        if values is None
        else held({name.replace("-", "_"): value for name, value in values.items()})
        for text, values in zip(families, given, strict=True)
    )
    if not (a or b):
        raise UserError(
            f"{called(type(law))} reads only {listed(law.inputs)}, which do not distinguish "
            f"{' and '.join(families)}; use a law that reads experts or total parameters, such as zhao or abnar."
        )
    rows, optima = [], ([], [])
    drawn: list[list[float]] = []
    # The leverage of a family over itself is 1 by definition and needs no interval.
    likely = known.likely(resampled) if isinstance(known, FitResult) and a != b else None
    warnings = [known.without_intervals] if likely is None and getattr(known, "without_intervals", "") else []
    for budget in flops:
        both = leverage(law, a, b, budget)
        for found, optimum in zip(optima, (both.family, both.against), strict=True):
            found.append(optimum)
        drawn.append([] if likely is None else leverages_under(both, likely.laws))
        ends = None if likely is None else likely.interval_of(drawn[-1], level)
        probes = None if likely is None else likely.probes
        if probes is not None and ends is not None and probes.moved(leverages_under(both, probes.laws), ends):
            warnings.append(
                f"The leverage at {budget:.3g} FLOPs has no interval: it depends on coefficients that the runs do "
                f"not determine ({', '.join(known.not_determined)})."
            )
            ends = None
        rows.append(BudgetLeverage(budget, *map(_known, (both.value, ends and ends.low, ends and ends.high))))
    for letter, family, found in zip("AB", families, optima, strict=True):
        if far := beyond_in_words(beyond(known, *found)):
            warnings.append(f"{letter} ({family}) lies outside the law's fitted range: {', '.join(far)}.")
    notes = [f"law: {name}; both families have their optimal sizes."]
    if likely is not None and rows[0].low is not None:
        notes += constant(drawn[0], leverages_under(leverage(law, a, b, flops[0] / 10), likely.laws))
    return LeverageTable(rows, notes, warnings, level, families, "" if likely is None else likely.method)


def leverage_under_formula(
    fit: FitResult, given: tuple[Mapping[str, float], Mapping[str, float]], flops: Sequence[float], level: float
) -> LeverageTable:
    """Return the leverage by a fitted formula, with intervals of the fit."""
    law = fit.law
    assert isinstance(law, FormulaLaw)
    a, b = (tuple(held_by(type(law), values, letter).items()) for letter, values in zip("AB", given, strict=True))
    rows, warnings = [], list(filter(None, [fit.without_intervals]))
    for budget in flops:
        (value,), (low,), (high,), (unknown,) = intervals(fit, FormulaLeverage(a, b, budget), level)
        # The leverage of a family over itself is 1 by definition and needs no interval.
        rows.append(BudgetLeverage(budget, *map(_known, (value, *((low, high) if a != b else (None, None))))))
        if unknown and not fit.few and value == value:
            warnings.append(f"The leverage at {budget:.3g} FLOPs has no interval: {unknown}.")
        far = outside({"flops": budget}, fit.fitted) | outside({"flops": budget * value}, fit.fitted)
        warnings += [f"At {budget:.3g} FLOPs: {sentence}" for sentence in sentences(far)]
    notes = [f"law: {law.formula.text}"]
    if rows[0].low is not None:
        notes += constant(*(intervals(fit, FormulaLeverage(a, b, one), level)[:3] for one in (flops[0], flops[0] / 10)))
    if any(row.leverage is None for row in rows):
        notes.append(
            "The leverage is undefined at budgets at which B does not reach A's loss within a factor of 9 million of "
            "the budget."
        )
    return LeverageTable(rows, notes, warnings, level, by=fit.method)


def constant(here: Any, elsewhere: Any) -> list[str]:
    """Return a note if leverages at two budgets are equal within the tolerance of the search."""
    if not np.allclose(np.log(here), np.log(elsewhere), rtol=0, atol=1e-4, equal_nan=True):
        return []
    return [
        "Under this law the leverage is the same at every budget, so its interval does not grow with extrapolation."
    ]


def _known(value: float | None) -> float | None:
    return None if value is None or value != value else float(value)


OTHERWISE = 1.25
"""Ratio of two families' FLOPs per 6·N·D above which their FLOPs conventions are assumed to differ."""


def _counted_alike(a: Runs, b: Runs) -> list[str]:
    """Return a warning if sizes and tokens indicate that the families count FLOPs by different conventions."""
    times = []
    for runs in (a, b):
        if runs.design.params_active is None or runs.design.tokens is None:
            return []
        least = FLOPS_PER_PARAM_AND_TOKEN * runs.design.params_active * runs.design.tokens
        times.append(float(np.median(runs.design.flops / least)))
    if max(times) <= OTHERWISE * min(times):
        return []
    return [
        f"A's FLOPs are {times[0]:.3g} times 6·params_active·tokens and B's {times[1]:.3g} times: if their counting "
        "conventions differ, the leverage is wrong by this ratio."
    ]


def _of_curves(between: Between) -> list[str]:
    """Return warnings about the fits, and the reason if there is no interval."""
    fits = (("A", between.curve), ("B", between.against))
    # The remedy of a fit names options of `moejax fit`.
    said = [f"{name}: {one}" for name, fit in fits for one in fit.warnings if one != fit.remedy]
    for (name, _), alone, one in zip(fits, between.without_asymptote, between.budgets, strict=True):
        if alone:
            said.append(
                f"{name} was trained at {counted(len(one.runs), 'budget')}, too few to fit an irreducible loss: its "
                "curve is a power law that falls to 0. Fix the value of a larger fit, as in "
                f"{argument('fixed', {'irreducible': '1.6'})}."
            )
    for why in dict.fromkeys(filter(None, between.unknown)):
        at = listed(
            [f"{flops:.3g}" for flops, reason in zip(between.flops, between.unknown, strict=True) if reason == why]
        )
        said.append(
            f"The leverage at {at} FLOPs has no interval: {why}. Train this family at more budgets, farther apart."
        )
    return said


NEAR = f"within {in_percent(NEAR_LOSS)} of the lowest loss"


def _in_words(losses: BudgetLosses) -> str:
    """Return how the loss of a family at each budget was determined."""
    smoothed, every = int(losses.smoothed.sum()), len(losses.smoothed)
    minimum, lowest = (
        f"the minimum of a quadratic in log {losses.size} through the runs {NEAR}",
        "the lowest measured loss",
    )
    if smoothed in (0, every):
        how = f"the loss at each of {every} budgets is {minimum if smoothed else lowest}"
    else:
        how = f"the loss at {smoothed} of {every} budgets is {minimum}; at the others it is {lowest}"
    return f"{how}; {_runs(losses)} per budget.{_left_out(losses)}"


def _left_out(losses: BudgetLosses) -> str:
    if not len(losses.left_out):
        return ""
    flops = [format(each) for each in losses.left_out]
    which = f"at {listed(flops)}" if len(flops) < 4 else f"of {flops[0]} to {flops[-1]}"
    return (
        f" Left out: {counted(len(flops), 'budget')} {which} FLOPs, because the best size is outside the trained sizes."
    )


def _one_sided(between: Between) -> list[str]:
    """Return warnings if the trained sizes may not include a budget's lowest loss."""
    said = []
    for name, one in zip("AB", between.budgets, strict=True):
        if one.size and not one.smoothed.any():
            said.append(
                f"{name}: no budget has three sizes near its lowest loss, so its runs may not have the best sizes "
                "for their FLOPs. The leverage and its interval apply to the trained sizes; they are biased against "
                "a family with worse sizes."
            )
        if ends := int(one.at_an_end.sum()):
            said.append(
                f"{name}: at {ends} of {counted(len(one.counts), 'budget')} the lowest loss is at the smallest or "
                f"largest trained size, so a size outside this range may be better, and {name} is underestimated. "
                f"Train sizes on both sides of the best size, or fit a law and give it as {argument('law')}."
            )
    return said


def _runs(losses: BudgetLosses) -> str:
    least, most = int(losses.counts.min()), int(losses.counts.max())
    return counted(most, "run") if least == most else f"{least} to {most} runs"


def _luck(between: Between) -> list[str]:
    """Return a warning about selection bias if one family has more runs per budget: the more noisy losses, the lower
    their minimum.
    """
    a, b = between.budgets
    if abs(a.lowest_of - b.lowest_of) < 1:
        return []
    if all(one.size for one in between.budgets):
        remedy = f"Train three sizes or more {NEAR} at each budget"
    else:
        remedy = f"Give the sizes of the runs ({SIZES[0]} or {SIZES[-1]})"
    return [
        f"A budget's loss is {_of_a_budget(a)} in A, and {_of_a_budget(b)} in B. The more noisy runs, the lower their "
        f"minimum; this biases the leverage and its interval towards {'A' if a.lowest_of > b.lowest_of else 'B'}. "
        f"{remedy}: the minimum of a quadratic through them has no such bias."
    ]


def _of_a_budget(losses: BudgetLosses) -> str:
    if losses.smoothed.all():
        return f"the minimum of a quadratic through {_runs(losses)}"
    lowest = int((~losses.smoothed).sum())
    where = f" (at {lowest} of {len(losses.counts)} budgets)" if losses.smoothed.any() else ""
    return f"the lowest of {_runs(losses)}{where}"


def _far(between: Between) -> list[str]:
    """Return a warning about the extrapolation of each family's curve."""
    parts = []
    for name, times in zip("AB", between.beyond, strict=True):
        above, below = times[times > 1], times[times < 1]
        parts += [f"{name}'s up to {above.max():.3g} times above its largest"] if len(above) else []
        parts += [f"{name}'s down to {1 / below.min():.3g} times below its smallest"] if len(below) else []
    if not parts:
        return []
    return [
        f"Loss-compute curves are extrapolated beyond the budgets of their runs, {listed(parts)}; intervals do not "
        "include model error there."
    ]
