"""Compare all laws that a table supports: fit them to the same runs and test them on the same held-out runs.

``diagnose`` checks whether published constants are optimal for the runs that they were fitted to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.objective import Huber, Penalty
from moejax.fit.search.starts import Grid
from moejax.fit.selection.decisions import LawDecisions, decide_by_each
from moejax.fit.selection.holdout import Split, beyond, hold_out, reach_of
from moejax.fit.selection.metrics import predict, unit_of_errors
from moejax.fit.selection.model_selection import AS_GOOD, Compared, ModelSelection, as_low, behind, by_error, choose
from moejax.fit.tables.read_runs import ReadRuns
from moejax.fit.uncertainty.estimands import given_to_each, rules_of
from moejax.fit.uncertainty.estimates import OPTIMAL_LOSS
from moejax.float64 import float64
from moejax.interval import Interval
from moejax.json_text import finite
from moejax.laws.dense.chinchilla import FLOPS_PER_PARAM_AND_TOKEN
from moejax.laws.design import value_of
from moejax.laws.formula_law import FormulaLaw
from moejax.laws.law import Law, coefficients
from moejax.result import BLANK, LOW_HIGH, Column, Plotted, Result, Table, Written, percent
from moejax.wording import argument, listed, option_hint, told


def compare(
    laws: Mapping[str, Any],
    runs: Runs,
    splits: Iterable[Split],
    *,
    penalty: Penalty | None = None,
    fixed: Mapping[str, float] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Fit every law to all runs, and once per split to the runs that are not held out.

    Args:
      fixed: coefficients to hold fixed, in every law that has them.

    Raises:
      UserError: nothing is held out, a fixed coefficient is in no law, or no law can be fitted to these runs. The
        message lists each law's reason.
    """
    splits, fixed = list(splits), dict(fixed or {})
    if not splits:
        raise UserError("A comparison of laws needs held-out runs; give at least one split.")
    names = {name: [f.name for f in fields(law)] for name, law in laws.items()}
    known = dict.fromkeys(name for own in names.values() for name in own)
    if unknown := [name for name in fixed if name not in known]:
        raise UserError(f"None of the laws has a coefficient {unknown[0]}; give one of {', '.join(known)}.")
    compared, left_out = [], {}
    for number, (name, law) in enumerate(laws.items()):
        if progress:
            progress("laws", number, len(laws))
        given = {key: value for key, value in fixed.items() if key in names[name]}
        try:
            fit = fit_law(law, runs, penalty=penalty, fixed=given, seed=seed)
            held_out = hold_out(law, runs, splits, penalty=penalty, fixed=given, seed=seed)
        except (ValueError, ArithmeticError) as error:
            left_out[name] = told(error)
            continue
        compared.append(Compared(name=name, fit=fit, held_out=tuple(held_out)))
    if not compared:
        raise UserError("No law can be fitted: " + " ".join(f"{name}: {why}" for name, why in left_out.items()))
    return Comparison(
        laws=tuple(by_error(compared)),
        left_out=left_out,
        splits=tuple(splits),
        runs=runs,
        beyond=beyond(runs, splits),
        reach=reach_of(runs, splits),
        fixed=fixed,
        seed=seed,
    )


def of_the_loss(laws: Mapping[str, type], names: Sequence[str] = ()) -> dict[str, type]:
    """Return the laws in ``names``, keyed by name; without ``names``, all laws that predict a loss."""
    return {name: law for name, law in laws.items() if (name in names if names else "loss" in law.outputs)}


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Plotted):
    """Laws in ascending order of held-out error, and the reasons why other laws could not be fitted."""

    laws: tuple[Compared, ...]
    left_out: dict[str, str]
    splits: tuple[Split, ...]
    runs: Runs
    """The compared runs."""
    beyond: dict[str, float]
    """Ratio of the largest held-out to the largest fitted value of each size or ratio, if above 1."""
    reach: dict[str, float]
    """Factor by which the held-out runs test extrapolation in each size (``reach_of``)."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Coefficients that were held fixed in every law that has them."""
    seed: int = 0
    read: ReadRuns | None = None
    """The compared rows of the table, which ``plot()`` draws; None if unknown."""

    def behind(self, law: Compared, level: float = 0.9) -> Interval:
        """Return the excess of a law's held-out RMSE over the best law's, in ``unit``, with its interval."""
        return behind(law, self.laws[0], level)

    @functools.cached_property
    def selection(self) -> ModelSelection:
        """The law to extrapolate with, or the reason why these runs select none."""
        return choose(self.laws, self.reach)

    @property
    def unit(self) -> str:
        """Unit of the errors: nats per token for a loss."""
        return unit_of_errors(self.laws[0].fit.output)

    @property
    def verdict(self) -> str:
        """Text that recommends a law for extrapolation and gives the reasons."""
        return " ".join(self.reasons)

    @property
    def reasons(self) -> list[str]:
        """The recommendation and its reasons, in reading order."""
        best = self.laws[0]
        nats = " nats" if best.fit.output == "loss" else ""
        equal = [law.name for law in as_low(self.laws)]
        which = "predicts the held-out runs best" if len(equal) == 1 else "predict the held-out runs equally well"
        lowest = f"{listed(equal)} {which} (RMSE {best.rmse:.4f}{nats})."
        return [lowest, *self.selection.reasons, *self._pride(), *self._luck(), *self._reach(), *self._doubts()]

    def next_steps(self, fitted: Callable[[str], str] | None = None, *, decided: bool = False) -> list[str]:
        """Return sentences with the next steps: the fit of the trusted law or, if no law is trusted, the decisions of
        the tied laws, more runs, and the fit of the preferred law.

        Args:
          fitted: returns the command that fits the law with a name; by default a call of Python.
          decided: True if the decisions of the tied laws are known.
        """
        selection = self.selection
        name = selection.trusted or selection.preferred
        fit = fitted(name) if fitted else f'fit = moejax.fit(runs, "{name}")'
        if selection.trusted:
            return [f"Next: {fit}", *self._then(name)]
        said = []
        if not decided and len(selection.contenders) > 1 and (given := self.example()):
            words = [f"{name}={value:.3g}".replace("e+", "e") for name, value in given.items()]
            add = option_hint(f"add --decide {','.join(words)} to this command")
            call = f"moejax.decide(comparison, {', '.join(words)})"
            said.append(
                f"To decide nevertheless: {add or call}. It compares the optima under the tied laws; these "
                "values have the proportions of the run with the lowest loss, and 10 times its FLOPs."
            )
        listing = ",".join(selection.contenders)
        proposes = option_hint(f"moejax next --law {listing}") or "moejax.next_runs"
        said += [
            f"To extrapolate: train more runs; {proposes} proposes them.",
            f"To predict inside the range of these runs: {fit}",
        ]
        return said

    def example(self) -> dict[str, float]:
        """Return quantities for ``decide``: 10 times the FLOPs of the run with the lowest loss, and its
        values of the other quantities that the tied laws need; empty if these laws decide nothing by FLOPs.
        """
        needed: dict[str, None] = {}
        for law in self.laws:
            rules = rules_of(type(law.fit.law)) if law.name in self.selection.contenders else ()
            by_flops = (one.given for one in rules if OPTIMAL_LOSS in one.gives and "flops" in one.given)
            needed |= dict.fromkeys(next(by_flops, ()))
        design, best = self.runs.design, int(np.argmin(np.where(self.runs.weight > 0, self.runs.loss, np.inf)))
        values = {name: value_of(design, name) for name in needed if name != "flops"}
        at = {name: float(f"{np.asarray(value)[best]:.3g}") for name, value in values.items() if value is not None}
        if not needed or design.params_active is None or design.tokens is None:
            return {}
        spent = FLOPS_PER_PARAM_AND_TOKEN * np.asarray(design.params_active)[best] * np.asarray(design.tokens)[best]
        return {"flops": float(f"{10 * spent:.0e}"), **at}

    def decide(self, level: float = 0.9, **given: float | int) -> LawDecisions:
        """Return the optimum at the given quantities under the trusted law or, in a tie, under each tied law.

        Args:
          level: coverage of the intervals.
          given: quantities of the decision, as in ``moejax.decide``; those of all laws together.

        Raises:
          UserError: no law has a decision for these quantities.
        """
        each = given_to_each({law.name: type(law.fit.law) for law in self.laws}, given)
        fits = {law.name: law.fit for law in self.laws if law.name in self.selection.contenders}
        return decide_by_each(fits, self.runs, given, each, level)

    def _then(self, name: str) -> list[str]:
        (law,) = (type(one.fit.law) for one in self.laws if one.name == name)
        if issubclass(law, FormulaLaw) or rules_of(law):
            return []
        design = option_hint("moejax design --law fit --flops FLOPS") or "moejax.design(fit, flops=FLOPS)"
        decide = option_hint("--decide") or "moejax.decide"
        return [f"Then: {design}, because {decide} does not apply to {name}."]

    def _pride(self) -> list[str]:
        # The law with the best fit may have large held-out errors.
        proud = min(self.laws, key=lambda law: law.fit.metrics.rmse_of(law.fit.output))
        if proud.rmse <= AS_GOOD * self.laws[0].rmse or proud.arbitrary:
            return []
        times = proud.rmse / self.laws[0].rmse
        missed = f"has {times:.1f} times the lowest held-out error"
        silent = "is NaN or infinite for some held-out run"
        return [
            f"{proud.name} fits all runs closest (RMSE {proud.fit.metrics.rmse_of(proud.fit.output):.4f}) but "
            f"{missed if np.isfinite(times) else silent}; a close fit is no reason to trust a law."
        ]

    def _luck(self) -> list[str]:
        untested = [law.name for law in self.laws if law.arbitrary]
        if not untested:
            return []
        ranked = ", and do not count in the ranking" * (len(untested) < len(self.laws))
        return [
            f"The held-out errors of {listed(untested)} are arbitrary, because the remaining runs do not determine "
            f"{'its' if len(untested) == 1 else 'their'} predictions{ranked}; hold out by another column, or add "
            "runs of other sizes."
        ]

    def _reach(self) -> list[str]:
        if not self.reach:
            return [
                "Most held-out runs are not larger than all fitted runs, so this does not test extrapolation; hold out "
                f"the largest runs, for example with {argument('hold_out', 'tokens')}."
            ]
        farthest = ", ".join(f"{factor:.3g} times in {name}" for name, factor in self.beyond.items())
        return [f"The held-out runs exceed the fitted runs by up to {farthest}; larger extrapolations were not tested."]

    def _doubts(self) -> list[str]:
        (law,) = (law for law in self.laws if law.name == self.selection.preferred)
        return [f"Warnings for {law.name}: {' '.join(law.fit.warnings)}"] if law.fit.warnings else []

    def summary(self, title: str = "Laws compared", verbose: bool = False) -> Result:
        """Return a table with a row per law, the best first, and the verdict.

        Notes name the held-out runs, fixed coefficients and omitted laws.

        Args:
          verbose: True to list the reason for each omitted law.
        """
        columns = (
            *ERRORS,
            Column("behind the best (90 %)", words=True, keys=("behind", *LOW_HIGH)),
            Column("R² held out", ".4f"),
            Column("largest error held out", percent(2)),
            Column("AICc", ".1f"),
            Column("not set by the data"),
        )
        rows = [
            [
                *(column.of(law) for column in ERRORS),
                _behind(self.behind(law)) if law is not self.laws[0] else BLANK,
                law.errors.r_squared,
                law.errors.max_relative_error,
                law.fit.aicc,
                len(law.fit.unidentified) + len(law.fit.unidentified_directions),
            ]
            for law in self.laws
        ]
        notes = [
            f"RMSE in {self.unit}; behind the best: 90 % interval, jackknife over groups. Held out: "
            f"{'; '.join(split.name for split in self.splits)}."
        ]
        for name, value in self.fixed.items():
            without = [law.name for law in self.laws if name not in law.fit.fixed]
            but = f"; not in {', '.join(without)}" if without else ""
            notes.append(f"Fixed, and not counted as a coefficient: {name} = {value:g}{but}.")
        if verbose:
            notes += [f"- {name} is left out: {reason}" for name, reason in self.left_out.items()]
        elif self.left_out:
            reasons = option_hint("--verbose") or "summary(verbose=True)"
            notes.append(f"Left out: {listed(self.left_out)}. {reasons} gives the reasons.")
        tables = [Table("", columns, rows, notes), Table("", notes=self.reasons)]
        latex = Table("", columns, rows, self.reasons)
        return Result(title=title, tables=tables, notes=self.next_steps(), for_latex=[latex], data=self.to_json())

    def glance(self) -> Result:
        """Return the errors of the laws without the verdict and the intervals, which take longer to compute."""
        return Result(title="Laws compared", tables=[Table.of("", ERRORS, self.laws)])

    def to_json(self) -> dict[str, Any]:
        """Return plain data, keyed by field; non-finite numbers become null."""
        laws = [
            {
                "name": law.name,
                "held_out": finite(law.errors),
                "behind": finite(self.behind(law)),
                "fit": law.fit.to_json(),
            }
            for law in self.laws
        ]
        return {
            "laws": laws,
            "left_out": self.left_out,
            "fixed": dict(self.fixed),
            "splits": [split.name for split in self.splits],
            "beyond": self.beyond,
            "reach": self.reach,
            "trusted": self.selection.trusted,
            "tied": list(self.selection.tied),
            "contenders": list(self.selection.contenders),
            "verdict": self.verdict,
        }


ERRORS = (
    Column("law", value="name"),
    Column("coefficients", value="fit.free"),
    Column("RMSE all runs", ".5f", value=lambda law: law.fit.metrics.rmse_of(law.fit.output)),
    Column("RMSE held out", ".5f", value="rmse"),
)
"""Columns of a compared law's errors."""


def _behind(difference: Interval) -> Written:
    middle, low, high = difference.middle, difference.low, difference.high
    words = f"{middle:+.5f} [{low:+.5f}, {high:+.5f}]" if np.isfinite(low) else "unknown for one group of runs"
    return Written((middle, low, high), words)


SAME = 1e-5
"""Largest relative difference from an initial guess at which a printed coefficient counts as unmoved."""
WORSE = 1e-3
"""Relative excess of the objective above which a law is not an optimum."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Comparison of a given law with the best fit to the same runs under the same penalty."""

    value: float
    """Sum of penalties of the given law."""
    best: FitResult
    excess: float
    """Relative excess of the given law's objective over the optimum's."""
    at_start: dict[str, float]
    """Coefficients that equal one of the search's initial guesses to printed precision."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Findings as sentences; empty if the law is an optimum."""
        said = []
        if self.excess > WORSE:
            said.append(f"The objective is {self.excess:.1%} above the optimum, so the search stopped early.")
        said += [
            f"{name} is {value:.6g}, one of its initial guesses, so the search never moved it."
            for name, value in self.at_start.items()
        ]
        return tuple(said)


def diagnose(law: Law, runs: Runs, *, penalty: Penalty | None = None, grid: Grid | None = None) -> Diagnosis:
    """Compare a law with given coefficients to the best fit to the same runs.

    Args:
      grid: initial guesses of the search that gave the law's coefficients, if known.
    """
    penalty = penalty or Huber()
    best = fit_law(law, runs, penalty=penalty)
    with float64():
        value = float(np.sum(runs.weight * np.asarray(penalty(predict(law, runs, best.output), runs.loss))))
    starts = {} if grid is None else grid.values
    at_start = {
        name: float(number)
        for name, number in coefficients(law).items()
        if any(abs(number - start) <= SAME * abs(start) for start in starts.get(name, ()) if start)
    }
    return Diagnosis(value=value, best=best, excess=value / best.value - 1, at_start=at_start)
