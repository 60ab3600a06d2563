"""Fit Tian's power laws of compute: hyperparameters, and the allocation to model scale and tokens, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from moejax.fit.runs import Runs, budgets
from moejax.fit.sweeps.settings import TwoValues, two_values_note
from moejax.float64 import float64
from moejax.json_text import finite
from moejax.laws.budget.allocation import Allocation
from moejax.laws.budget.hyperparameters import Hyperparameters
from moejax.laws.design import Design
from moejax.laws.law import coefficients
from moejax.papers.isoflop_optima import LEVEL, power_through
from moejax.result import LOW_HIGH, Column, Table, Written

if TYPE_CHECKING:
    import pandas as pd

NEAR_OPTIMAL = 0.0025
"""Maximum relative excess over the lowest loss at a budget for a near-optimal run (Appendix E.1)."""
SETTINGS = ("learning_rate", "batch_tokens")
"""Settings of the law of hyperparameters."""
LEAST_TRIED = 3
"""Minimum number of (learning rate, batch size) pairs for a budget to determine an optimum."""
LEAST_SPLITS = 3
"""Minimum number of token counts, more than 10 % apart, for a budget to determine an optimum."""
LEAST_LEVELS = 3
"""Minimum number of budgets; a line through fewer points has no interval."""


@dataclass(frozen=True, kw_only=True)
class PowerLaws:
    """Two power laws of compute, fitted by least squares in logarithms."""

    name: str
    part: str
    """Subset of the runs: ``mixtures`` or ``dense``."""
    law: Hyperparameters | Allocation
    points: Mapping[str, Float[np.ndarray, " runs"]]
    """Fitted runs: FLOPs, the outputs of the law, and the loss."""
    runs: int
    budgets: int
    exponents: dict[str, tuple[float, float]]
    """90 % confidence interval of each exponent by Student's t; NaN if all runs have the same value, as on a coarse
    grid."""
    optima: int
    """Number of groups and budgets with a best run."""
    at_an_end: int
    """Number of optima at the edge of a grid of three or more values, so that the true optimum may be outside."""
    of_two: Sequence[TwoValues] = ()
    """Sweeps of only two values."""

    def table(self) -> Table:
        """Return a table of the coefficients, with intervals of the exponents."""
        ends = {
            name: Written((low, high), f"[{low:.4f}, {high:.4f}]") if np.isfinite(low) else None
            for name, (low, high) in self.exponents.items()
        }
        rows = [[name, float(value), ends.get(name)] for name, value in coefficients(self.law).items()]
        columns = (Column("coefficient"), Column("value", ".6g"), Column(f"{LEVEL:.0%} interval", keys=LOW_HIGH))
        ends_said = (
            [f"{self.at_an_end} of {self.optima} optima are at the edge of the trained range"] if self.at_an_end else []
        )
        ends_said += [two_values_note(self.of_two)] if self.of_two else []
        return Table(
            f"{self.name}: {self.runs} runs at {self.budgets} budgets", columns, rows, ends_said, key="power-law"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per coefficient, with intervals of the exponents."""
        none = (float("nan"), float("nan"))
        return [
            {"law": type(self.law).__name__, "part": self.part, "coefficient": name, "value": float(value)}
            | dict(zip(("low", "high"), self.exponents.get(name, none), strict=True))
            for name, value in coefficients(self.law).items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name."""
        law = {name: float(value) for name, value in coefficients(self.law).items()}
        exponents = {name: finite(list(ends)) for name, ends in self.exponents.items()}
        return {"name": self.name, "law": law, "runs": self.runs, "budgets": self.budgets, "exponents": exponents}


def points_of(laws: Sequence[PowerLaws]) -> pd.DataFrame:
    """Return a table of all laws' fitted runs by part, with the laws' values (``fitted_…``)."""
    import pandas as pd

    tables = []
    for one in laws:
        with float64():
            given = one.law(Design(flops=np.asarray(one.points["flops"], np.float64)))
        fitted = {f"fitted_{name}": np.asarray(values, np.float64) for name, values in given.items()}
        tables.append(pd.DataFrame({"part": one.part, **one.points, **fitted}))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def hyperparameter_law(
    runs: Runs,
    budget: Int[np.ndarray, " runs"],
    flops: Float[np.ndarray, " budgets"],
    parts: Mapping[str, Bool[np.ndarray, " runs"]],
    learning_rate: Float[np.ndarray, " runs"] | None,
    batch_tokens: Float[np.ndarray, " runs"] | None,
    family: Int[np.ndarray, " runs"] | None = None,
) -> tuple[PowerLaws, ...]:
    """Fit Eq. 5 to each part's near-optimal runs; return no laws without learning rates and batch sizes.

    A run is near-optimal if its loss is near the lowest loss of its group and budget. Without ``family``, all runs are
    one group. Budgets with fewer than ``LEAST_TRIED`` pairs do not determine an optimum and are not used.
    """
    if learning_rate is None or batch_tokens is None:
        return ()
    tried, laws = np.stack([learning_rate, batch_tokens]), []
    for part, mask in parts.items():
        near = np.zeros(len(runs), bool)
        at_an_end, of_two = [], []
        for here in _cells(mask & (runs.weight > 0), budget, family):
            if len(np.unique(tried[:, here], axis=1).T) < LEAST_TRIED:
                continue
            near |= here & (runs.loss <= runs.loss[here].min() * (1 + NEAR_OPTIMAL))
            best = tried[:, np.flatnonzero(here)[np.argmin(runs.loss[here])]]
            values: dict[str, np.ndarray] = {n: np.unique(row[here]) for n, row in zip(SETTINGS, tried, strict=True)}
            own: dict[str, float] = dict(zip(SETTINGS, map(float, best), strict=True))
            at_an_end.append(any(own[n] in (v[0], v[-1]) for n, v in values.items() if len(v) > 2))
            of_two += [
                TwoValues(setting=n, better=own[n], other=float(v[v != own[n]][0]))
                for n, v in values.items()
                if len(v) == 2
            ]
        points = {
            "flops": flops[budget[near]],
            "learning_rate": learning_rate[near],
            "batch_tokens": batch_tokens[near],
            "loss": runs.loss[near],
        }
        outputs = {"learning_rate": "learning_rate", "batch": "batch_tokens"}
        laws += _laws(
            Hyperparameters, outputs, f"hyperparameters of {part} (Eq. 5)", part, points, at_an_end, of_two=of_two
        )
    return tuple(laws)


def allocation_law(
    runs: Runs,
    budget: Int[np.ndarray, " runs"],
    parts: Mapping[str, Bool[np.ndarray, " runs"]],
    family: Int[np.ndarray, " runs"] | None = None,
) -> tuple[PowerLaws, ...]:
    """Fit Eq. 6 and Table 5 for each part: M = C/D and D at the lowest loss of each group and budget.

    Without ``family`` all runs are one group. Only budgets with at least ``LEAST_SPLITS`` token counts are used.
    """
    tokens, spent = runs.design.tokens, runs.design.flops
    if tokens is None:
        return ()
    laws = []
    for part, mask in parts.items():
        best, at_an_end = [], []
        for cell in _cells(mask & (runs.weight > 0), budget, family):
            here = np.flatnonzero(cell)
            split = budgets(tokens[here])[0]
            if len(np.unique(split)) >= LEAST_SPLITS:
                lowest = np.argmin(runs.loss[here])
                best.append(here[lowest])
                at_an_end.append(bool(split[lowest] in (0, split.max())))
        best = np.asarray(best, int)
        points = {
            "flops": spent[best],
            "flops_per_token": spent[best] / tokens[best],
            "tokens": tokens[best],
            "loss": runs.loss[best],
        }
        outputs = {"model": "flops_per_token", "tokens": "tokens"}
        laws += _laws(Allocation, outputs, f"allocation of {part} (Eq. 6)", part, points, at_an_end, budget[best])
    return tuple(laws)


def _cells(
    mask: Bool[np.ndarray, " runs"], budget: Int[np.ndarray, " runs"], family: Int[np.ndarray, " runs"] | None
) -> Iterator[Bool[np.ndarray, " runs"]]:
    """Yield a mask for the runs of each group at each budget. Without ``family``, all runs are one group."""
    family = np.zeros_like(budget) if family is None else family
    for number, own in sorted(set(zip(budget[mask].tolist(), family[mask].tolist(), strict=True))):
        yield mask & (budget == number) & (family == own)


def _laws(
    law: type[Hyperparameters | Allocation],
    outputs: Mapping[str, str],
    name: str,
    part: str,
    points: Mapping[str, Float[np.ndarray, " runs"]],
    at_an_end: Sequence[bool],
    budget: Int[np.ndarray, " runs"] | None = None,
    of_two: Sequence[TwoValues] = (),
) -> list[PowerLaws]:
    """Fit a power of compute to every output; return no law for fewer than ``LEAST_LEVELS`` budgets.

    Args:
      outputs: column of every output, keyed by the first word of its two coefficients.
      budget: budget of every point; by default, points with equal FLOPs share a budget.
    """
    levels = len(np.unique(points["flops"] if budget is None else budget))
    if levels < LEAST_LEVELS:
        return []
    coefficients, exponents = {}, {}
    for output, column in outputs.items():
        scale, exponent, exponents[f"{output}_exponent"] = power_through(points["flops"], points[column])
        coefficients |= {f"{output}_scale": scale, f"{output}_exponent": exponent}
    return [
        PowerLaws(
            name=name,
            part=part,
            law=law(**coefficients),
            points=points,
            runs=len(points["loss"]),
            budgets=levels,
            exponents=exponents,
            optima=len(at_an_end),
            at_an_end=sum(at_an_end),
            of_two=of_two,
        )
    ]
