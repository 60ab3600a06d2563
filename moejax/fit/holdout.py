"""Errors on runs that were not fitted: the only errors that say whether a law extrapolates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from moejax.errors import UserError
from moejax.fit.extrapolation import RATIOS, SIZES, outside, ranges
from moejax.fit.fit_law import fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.metrics import Metrics, errors, plain, predict
from moejax.fit.runs import Runs
from moejax.wording import told


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which runs are held out, and in what words."""

    name: str
    held_out: Bool[np.ndarray, " runs"]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A law fitted to the rest, and its errors on what was held out."""

    name: str
    fit: FitResult
    """Its ``metrics`` are the errors on the runs that were fitted."""
    metrics: Metrics
    """Errors on the runs that were held out."""
    runs: Runs
    """The runs that were held out."""
    predicted: Float[np.ndarray, " held_out"]
    """What the law gives them."""


def largest(runs: Runs, field: str, *, share: float = 0.2, above: float | None = None) -> Split:
    """The runs that are largest in a Design field: those at or above a value, or a share of the distinct values.

    Raises:
      UserError: the runs do not have the field, or nothing would be left to fit or to hold out.
    """
    values = getattr(runs.design, field, None)
    if values is None:
        raise UserError(f"The runs have no {field}; hold out by a field that they have.")
    return at_least(runs, field, values, above, share=share)


def at_least(
    runs: Runs, name: str, values: Float[np.ndarray, " runs"], above: float | None = None, *, share: float = 0.2
) -> Split:
    """As ``largest``, by any number of each run."""
    levels = np.unique(values[runs.weight > 0])
    if above is None:
        above = float(levels[-max(1, round(share * len(levels)))])
    # A quantity that is worked out, such as 1 - 1/50, may fall a rounding short of how it is written.
    return split_of(runs, f"{name} ≥ {above:.4g}", values >= above - ROUNDING * abs(above))


ROUNDING = 1e-9


def split_of(runs: Runs, name: str, held_out: Bool[np.ndarray, " runs"]) -> Split:
    """The split of that name.

    Raises:
      UserError: it would leave no run to fit or none to hold out.
    """
    marked = held_out[runs.weight > 0]
    if marked.all() or not marked.any():
        raise UserError(f"Holding out {name} leaves no runs on one side; choose another.")
    return Split(name=name, held_out=held_out)


def beyond(runs: Runs, splits: Iterable[Split]) -> dict[str, float]:
    """How far the largest held-out run lies beyond the fitted ones in each size and ratio, where it does."""
    found: dict[str, float] = {}
    for split in splits:
        fitted, held_out = (ranges(runs.only(kept)) for kept in (~split.held_out, split.held_out))
        far = outside({name: high for name, (_, high) in held_out.items() if name in (*SIZES, *RATIOS)}, fitted)
        found |= {name: max(times, found.get(name, 1.0)) for name, times in far.items() if times > 1}
    return found


def folds(runs: Runs, count: int = 5, *, seed: int = 0) -> Iterator[Split]:
    """``count`` disjoint parts of the groups, each held out once."""
    present = np.unique(runs.group[runs.weight > 0])
    if not 2 <= count <= len(present):
        raise UserError(f"{count} folds of {len(present)} groups; give at least 2 and at most as many as groups.")
    shuffled = np.random.default_rng(seed).permutation(present)
    for i in range(count):
        yield Split(name=f"fold {i + 1} of {count}", held_out=np.isin(runs.group, shuffled[i::count]))


def each_group(runs: Runs) -> Iterator[Split]:
    """Every group (architecture) held out once."""
    for group in np.unique(runs.group[runs.weight > 0]):
        yield Split(name=f"group {group}", held_out=runs.group == group)


def hold_out(law: Any, runs: Runs, splits: Iterable[Split], **options: Any) -> list[HeldOut]:
    """Fit a law to what each split leaves, with the options of ``fit_law``, and test it on the rest.

    Raises:
      UserError: the law cannot be fitted to what a split leaves.
    """
    found = []
    for split in splits:
        try:
            fit = fit_law(law, runs.only(~split.held_out), **options)
        except ValueError as error:
            raise UserError(f"With {split.name} held out: {told(error)}") from error
        tested = runs.where(split.held_out & (runs.weight > 0))
        predicted = predict(fit.law, tested, fit.output)
        missed = errors(predicted, tested.loss, tested.weight)
        found.append(HeldOut(name=split.name, fit=fit, metrics=missed, runs=tested, predicted=predicted))
    return found


def pooled(found: Iterable[HeldOut]) -> Metrics:
    """Errors over all held-out runs together; a run that is held out twice counts twice."""
    found = list(found)
    return errors(
        np.concatenate([h.predicted for h in found]),
        np.concatenate([h.runs.loss for h in found]),
        np.concatenate([h.runs.weight for h in found]),
    )


def table(found: Iterable[HeldOut]) -> str:
    """Errors of each split, and over all of them, as text."""
    found = list(found)
    head = f"{'MAE':>10}{'RMSE':>10}{'R²':>10}{'Huber':>11}{'largest, %':>12}{'RMSE fitted':>13}"
    lines = [f"{'held out':<28}{'runs':>6}{head}"]
    for h in found:
        lines.append(f"{h.name:<28}{_errors_line(h.metrics)}{h.fit.metrics.rmse:>13.5f}")
    if len(found) > 1:
        lines.append(f"{'all of these':<28}{_errors_line(pooled(found))}")
    return "\n".join(lines)


def _errors_line(m: Metrics) -> str:
    largest_error = 100 * m.max_relative_error
    return f"{m.runs:>6}{m.mae:>10.5f}{m.rmse:>10.5f}{m.r_squared:>10.4f}{m.huber:>11.3g}{largest_error:>12.3f}"


def to_json(found: Iterable[HeldOut]) -> list[dict[str, Any]]:
    """Errors of each split as plain data; what is not finite is null."""
    return [
        {
            "name": h.name,
            "errors": plain(h.metrics),
            "fitted": plain(h.fit.metrics),
            "law": h.fit.coefficients,
            "converged": h.fit.converged,
        }
        for h in found
    ]


MISSES = 1.5
"""Times the RMSE on fitted runs from which the RMSE on held-out ones says that a law does not extrapolate."""


def warnings(found: Iterable[Mapping[str, Any]], fitted: float) -> list[str]:
    """A sentence about the split that a law misses most, if it misses any; of what ``to_json`` gives.

    Args:
      fitted: RMSE of the fit to all runs, for files whose splits do not have that of theirs.
    """
    both = [(s["name"], s["errors"]["rmse"], s.get("fitted", {}).get("rmse", fitted)) for s in found]
    missed = [(far / near, name, far, near) for name, far, near in both if far and near and far > MISSES * near]
    return [
        f"Held-out RMSE {far:.5f} nats/token ({name}) is {times:.3g} times the fitted {near:.5f}: the law misses what "
        f"lies beyond the runs it is fitted to, and an optimum out there inherits that."
        for times, name, far, near in missed
        if times == max(missed)[0]
    ][:1]
