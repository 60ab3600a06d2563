"""Hold out runs, by a rule or a column of their table, and compute errors on them to test whether a law
extrapolates."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from moejax import run_table
from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import SAME, Runs, budgets
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.objective import outputs
from moejax.fit.selection.metrics import Metrics, errors, predict, unit_of_errors
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.extrapolation import RATIOS, SIZES, outside, ranges
from moejax.float64 import float64
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import FIELDS, Design
from moejax.laws.law import Law
from moejax.laws.predict import PRINTS_AS_ONE
from moejax.quantities import parse
from moejax.run_table import Series
from moejax.wording import argument, counted, did_you_mean, told


@dataclass(frozen=True, kw_only=True)
class Split:
    """A set of held-out runs with a description."""

    name: str
    held_out: Bool[np.ndarray, " runs"]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A fit to the runs that a split does not hold out, and its errors on the held-out runs."""

    name: str
    fit: FitResult
    """Fit to the runs that are not held out; ``fit.metrics`` are its errors on these runs."""
    metrics: Metrics
    """Errors on the held-out runs."""
    held_out: Bool[np.ndarray, " runs"]
    """Mask, over all runs, of the held-out runs with a positive weight."""
    fitted: Runs
    """All runs, with a weight of 0 for the held-out runs."""
    runs: Runs
    """Held-out runs."""
    predicted: Float[np.ndarray, " held_out"]
    """Predictions for the held-out runs."""

    @functools.cached_property
    def left_open(self) -> str:
        """Reason why the fitted runs do not determine some held-out prediction; empty if they determine all.

        The error of such a prediction is arbitrary. For example, E + B/D^beta fitted to two values of tokens can take
        any value at a third.
        """
        if not (self.fit.undetermined or self.fit.alternatives):
            return ""
        given = functools.partial(outputs, design=self.runs.design, output=self.fit.output)
        return next(filter(None, self.fit.unknown(given, len(self.runs))), "")


def largest(runs: Runs, field: str, *, share: float = 0.2, above: float | None = None) -> Split:
    """Hold out the runs with the largest values of a ``Design`` quantity: at least ``above``, or the largest ``share``
    of the distinct values.

    Raises:
      UserError: the runs do not have the field, or no run would remain to fit or to hold out.
    """
    values = _derived(runs, field)
    if values is None:
        raise UserError(f"The runs have no {field}; hold out by a field of the runs.")
    return at_least(runs, field, values, above, share=share)


def at_least(
    runs: Runs, name: str, values: Float[np.ndarray, " runs"], above: float | None = None, *, share: float = 0.2
) -> Split:
    """Hold out runs like ``largest``, by any array with a value per run. Budgets of FLOPs or tokens are held out
    whole."""
    largest_of_budget = _largest_of_budget(name, values)
    if above is None:
        levels = np.unique(largest_of_budget[runs.weight > 0])
        above = float(levels[-max(1, round(share * len(levels)))])
    # A computed quantity such as 1 - 1/50 may differ from its written value by rounding.
    held_out = largest_of_budget >= above - ROUNDING * abs(above)
    return split_of(runs, f"{name} ≥ {values[held_out].min(initial=above):.4g}", held_out)


ROUNDING = 1e-9


def _largest_of_budget(name: str, values: Float[np.ndarray, " runs"]) -> Float[np.ndarray, " runs"]:
    """Return the values; for ``flops`` and ``tokens``, which differ slightly within a budget, its largest value."""
    if name not in ("flops", "tokens") or not (values > 0).all():
        return values
    number, _ = budgets(values)
    smallest, largest = np.full(number.max() + 1, np.inf), np.zeros(number.max() + 1)
    np.minimum.at(smallest, number, values)
    np.maximum.at(largest, number, values)
    # Without token budgets, tokens vary continuously.
    return values if name == "tokens" and (largest > SAME * smallest).any() else largest[number]


def split_of(runs: Runs, name: str, held_out: Bool[np.ndarray, " runs"]) -> Split:
    """Return the split that holds out the runs of a mask.

    Raises:
      UserError: the split would leave no run to fit, or no run to hold out.
    """
    marked = held_out[runs.weight > 0]
    if marked.all():
        raise UserError(f"Holding out {name} leaves no run to fit; choose another value or column.")
    if not marked.any():
        raise UserError(f"No run is held out by {name}; choose another value or column.")
    return Split(name=name, held_out=held_out)


def beyond(runs: Runs, splits: Iterable[Split]) -> dict[str, float]:
    """Return the ratio of the largest held-out to the largest fitted value, keyed by size or ratio; ratios that print
    as 1, or less, are left out."""
    farthest: dict[str, float] = {}
    for split in splits:
        far = _beyond(*(runs.only(kept) for kept in (~split.held_out, split.held_out)))
        farthest |= {name: max(times, farthest.get(name, 1.0)) for name, times in far.items()}
    return farthest


def _beyond(fitted: Runs, held_out: Runs) -> dict[str, float]:
    fitted, held_out = _with_flops(fitted), _with_flops(held_out)
    largest = {name: high for name, (_, high) in ranges(held_out).items() if name in (*SIZES, *RATIOS)}
    return {name: times for name, times in outside(largest, ranges(fitted)).items() if times > 1}


def reach_of(runs: Runs, splits: Iterable[Split]) -> dict[str, float]:
    """Return how far the held-out runs test extrapolation: the ratio of the largest held-out to the largest fitted
    value, keyed by size.

    A split tests extrapolation in a size if most of its held-out runs exceed all fitted runs in this size. Errors are
    pooled over the splits, so the result is empty unless these splits contain most of the held-out runs.
    """
    farthest: dict[str, float] = {}
    tested, count = 0, 0
    for split in splits:
        fitted, held_out = (_sizes(runs, kept & (runs.weight > 0)) for kept in (~split.held_out, split.held_out))
        times = {name: held_out[name] / fitted[name].max() for name in fitted}
        far = {name: float(one.max()) for name, one in times.items() if np.mean(one > 1 + PRINTS_AS_ONE) > 0.5}
        farthest |= {name: max(one, farthest.get(name, 1.0)) for name, one in far.items()}
        members = int(split.held_out[runs.weight > 0].sum())
        tested, count = tested + members * bool(far), count + members
    return farthest if tested > count / 2 else {}


def _sizes(runs: Runs, kept: Bool[np.ndarray, " runs"]) -> dict[str, Float[np.ndarray, " kept"]]:
    """Return the sizes of the runs of a mask that all runs have; without FLOPs in the table, they are computed."""
    values = {name: value for name in SIZES if (value := _derived(runs, name)) is not None}
    return {name: value[kept] for name, value in values.items() if np.isfinite(value).all() and (value > 0).all()}


def _with_flops(runs: Runs) -> Runs:
    return replace(runs, design=replace(runs.design, flops=_derived(runs, "flops")))


def folds(runs: Runs, count: int = 5, *, seed: int = 0) -> Iterator[Split]:
    """Split the groups into ``count`` disjoint folds, each held out once."""
    present = np.unique(runs.group[runs.weight > 0])
    if not 2 <= count <= len(present):
        raise UserError(f"The number of folds must be between 2 and {len(present)}, the number of groups; got {count}.")
    shuffled = np.random.default_rng(seed).permutation(present)
    for i in range(count):
        yield Split(name=f"fold {i + 1} of {count}", held_out=np.isin(runs.group, shuffled[i::count]))


def each_group(runs: Runs) -> Iterator[Split]:
    """Hold out every group (architecture) once."""
    for group in np.unique(runs.group[runs.weight > 0]):
        yield Split(name=f"group {group}", held_out=runs.group == group)


def hold_out(
    law: Law | type, runs: Runs, splits: Iterable[Split], *, progress: Progress | None = None, **options: Any
) -> list[HeldOut]:
    """Fit a law to the runs that each split does not hold out, with the options of ``fit_law``, and test it on the
    held-out runs.

    Args:
      progress: callback that is called for every split.

    Raises:
      UserError: the law cannot be fitted to the runs that a split does not hold out.
    """
    return hold_out_of(lambda split: fit_law(law, runs.only(~split.held_out), **options), runs, splits, progress)


def hold_out_of(
    fit_without: Callable[[Split], FitResult], runs: Runs, splits: Iterable[Split], progress: Progress | None = None
) -> list[HeldOut]:
    """Test fits by any function: ``fit_without`` fits the runs that a split does not hold out.

    Raises:
      UserError: ``fit_without`` raises a ``ValueError``; the message names the split.
    """
    tested_splits, splits = [], list(splits)
    for number, split in enumerate(splits):
        if progress is not None:
            progress("holding out", number, len(splits))
        fitted, held_out = runs.only(~split.held_out), split.held_out & (runs.weight > 0)
        try:
            fit = fit_without(split)
        except ValueError as error:
            raise UserError(f"With {split.name} held out: {told(error)}") from error
        tested = runs.where(held_out)
        # Predict all runs, as in the fit, because another number of runs would compile another program.
        predicted = predict(fit.law, runs, fit.output)[held_out]
        missed = errors(predicted, tested.loss, tested.weight)
        tested_splits.append(
            HeldOut(
                name=split.name,
                fit=fit,
                metrics=missed,
                held_out=held_out,
                fitted=fitted,
                runs=tested,
                predicted=predicted,
            )
        )
    return tested_splits


def pooled(splits: Iterable[HeldOut]) -> Metrics:
    """Return the errors over all held-out runs; a run that is held out twice counts twice."""
    splits = list(splits)
    return errors(
        np.concatenate([h.predicted for h in splits]),
        np.concatenate([h.runs.loss for h in splits]),
        np.concatenate([h.runs.weight for h in splits]),
    )


@dataclass(frozen=True, kw_only=True)
class SplitErrors:
    """The errors of a split, in the form that a fit's file stores."""

    name: str
    errors: Metrics
    """Errors on the held-out runs."""
    fitted: Metrics
    """Errors on the fitted runs."""
    law: Mapping[str, float | None]
    """Coefficients of the fit."""
    converged: bool
    left_open: str = ""
    """``HeldOut.left_open``."""
    beyond: Mapping[str, float]
    """Factors by which held-out runs exceed the fitted runs, keyed by size or ratio."""


def split_errors(splits: Iterable[HeldOut]) -> tuple[SplitErrors, ...]:
    """Return the errors of each split."""
    return tuple(
        SplitErrors(
            name=one.name,
            errors=one.metrics,
            fitted=one.fit.metrics,
            law=one.fit.coefficients,
            converged=one.fit.converged,
            left_open=one.left_open,
            beyond=_beyond(one.fitted, one.runs),
        )
        for one in splits
    )


MISSES = 1.5
"""Ratio of held-out to fitted RMSE above which a law does not extrapolate."""
FEW = 3
"""With fewer held-out runs, a warning requires that each differs from its prediction by two half-widths of its
interval."""


def warnings(splits: Sequence[SplitErrors], output: str = "loss", outside: Container[str] | None = None) -> list[str]:
    """Return a warning about the split with the largest error, and a warning about a split with arbitrary errors.

    A split gets a warning if its RMSE exceeds 1.5 times the fitted RMSE and half of its runs are outside their 90 %
    prediction intervals. The intervals are wide if the fitted runs leave coefficients undetermined.

    Args:
      outside: splits whose runs lie outside their prediction intervals (``TestedRuns.outside``), if known.
    """
    luck = [f"The error on {one.name} is arbitrary: {one.left_open}." for one in splits if one.left_open]
    missed = [
        (one.errors.rmse_of(output) / near, one, near)
        for one in splits
        if not one.left_open and (outside is None or one.name in outside)
        for near in [one.fitted.rmse_of(output)]
        if near and one.errors.rmse_of(output) > MISSES * near
    ]
    if not missed:
        return luck[:1]
    times, worst, near = max(missed, key=lambda one: one[0])
    misses = (
        "misses held-out runs within the sizes of the fitted runs."
        if not worst.beyond
        else "misses runs beyond the fitted sizes, and an optimum at such sizes inherits this error."
    )
    return [
        *luck[:1],
        f"Held-out RMSE {worst.errors.rmse_of(output):.5f} {unit_of_errors(output)} ({worst.name}) is {times:.3g} "
        f"times the fitted {near:.5f}: the law {misses}",
    ]


DERIVED = tuple(name for name, member in vars(Design).items() if isinstance(member, property))
"""Quantities that a Design derives from its fields, such as ``sparsity`` and ``granularity``."""


def split_by(read: ReadRuns, text: str) -> Split:
    """Return the split that ``text`` describes.

    ``sparsity`` holds out the largest fifth of its distinct values, ``sparsity:0.98`` all values of at least 0.98, and
    ``router_type=S-Base`` all runs with this value. ``flops`` and ``tokens`` hold out whole budgets (``runs.budgets``),
    also if a given value lies within a budget. The name is a column of the table, or else a quantity of ``Design``;
    without FLOPs, ``flops`` is 6 · params_active · tokens.

    Raises:
      UserError: the column does not exist or has no numbers to compare, or no run would be fitted or held out.
    """
    if _knows(read, text):
        return at_least(read.runs, text, _numbers(read, text))
    for sign, taken in (("=", _equal), (":", _from)):
        name, operator, value = text.partition(sign)
        if operator and _knows(read, name):
            return taken(read, name, value.strip())
    raise UserError(_unknown(read, text.partition("=" if "=" in text else ":")[0]))


def each_value(read: ReadRuns, column: str) -> Iterator[Split]:
    """Hold out the runs of every value of a column once. If the table has no column ``group``, ``group`` means the
    groups of the runs.

    Raises:
      UserError: the column does not exist or has only one value.
    """
    if column == "group" and column not in read.frame.columns:
        yield from each_group(read.runs)
        return
    if not _knows(read, column):
        raise UserError(_unknown(read, column))
    values = read.frame[column] if column in read.frame.columns else _numbers(read, column)
    if column in read.frame.columns:
        _full(column, values[read.runs.weight > 0])
    for value in dict.fromkeys(v for v, weight in zip(values, read.runs.weight, strict=True) if weight > 0):
        shown = f"{value:.6g}" if isinstance(value, float) else value
        yield split_of(read.runs, f"{column} = {shown}", np.asarray([v == value for v in values]))


def _from(read: ReadRuns, name: str, value: str) -> Split:
    return at_least(read.runs, name, _numbers(read, name), parse(value))


def _equal(read: ReadRuns, name: str, value: str) -> Split:
    if name in read.frame.columns:
        same = np.asarray([str(cell) == value for cell in read.frame[name]])
        if same.any():
            return split_of(read.runs, f"{name} = {value}", same)
    try:
        wanted, values = parse(value), _numbers(read, name)
    except ValueError:
        known = ", ".join(map(str, dict.fromkeys(read.frame[name]))) if name in read.frame.columns else ""
        allowed = f"one of {known}" if known else "a number"
        raise UserError(f"No run has {name} = {value}; give {allowed}.") from None
    # Derived quantities such as 1 - 1/E are rounded, and users give only a few digits.
    return split_of(read.runs, f"{name} = {value}", np.isclose(values, wanted, rtol=1e-6, atol=0))


def _knows(read: ReadRuns, name: str) -> bool:
    return name in read.frame.columns or (name in (*FIELDS, *DERIVED) and _derived(read.runs, name) is not None)


def _derived(runs: Runs, name: str) -> np.ndarray | None:
    """Return a quantity of the runs' designs; None if the name or an input is unknown."""
    try:
        with float64():
            value = getattr(runs.design, name, None)
            if value is None and name == "flops":
                value = FLOPS_PER_PARAM_AND_TOKEN * runs.design.params_active * runs.design.tokens
            return None if value is None else np.asarray(value, np.float64)
    except TypeError:
        return None


def _numbers(read: ReadRuns, name: str) -> np.ndarray:
    if name not in read.frame.columns:
        derived = _derived(read.runs, name)
        assert derived is not None, "_knows(read, name) was asked first"
        return derived
    return _full(name, run_table.numbers(read.frame[name], where="The table")).to_numpy(np.float64)


def _full(name: str, values: Series) -> Any:
    """Return a column, or raise ``UserError`` if it has empty cells, since these have no value to hold out by."""
    if empty := int(values.isna().sum()):
        raise UserError(
            f"{name} is empty in {counted(empty, 'row')}; hold out by a column without empty cells, or leave these "
            f"rows out with {argument('where')}."
        )
    return values


def _unknown(read: ReadRuns, name: str) -> str:
    columns = [str(column) for column in read.frame.columns]
    derived = [n for n in (*FIELDS, *DERIVED) if _derived(read.runs, n) is not None and n not in columns]
    hint = did_you_mean(name, columns + derived)
    return f"The runs have no {name} to hold out by; {hint} Write NAME, NAME:LEAST or NAME=VALUE."
