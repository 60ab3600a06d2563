"""The procedure of Zhao et al. (2025): margins group by group, nested laws of two to five factors, and rivals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.bootstrap import bootstrap
from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import Split
from moejax.fit.metrics import metrics
from moejax.fit.runs import Runs
from moejax.fit.starts import Sobol, Starts
from moejax.laws.expert_count import ExpertCount
from moejax.laws.fewer_factors import FourFactor, ThreeFactor, TwoFactor
from moejax.laws.five_factor import FiveFactor, best_active_experts, best_shared_share
from moejax.laws.granularity import Granularity
from moejax.laws.law import coefficients
from moejax.laws.marginal import (
    MarginalActive,
    MarginalExperts,
    MarginalShared,
    optimal_active,
    optimal_experts,
    optimal_shared,
)
from moejax.laws.sparsity import Sparsity
from moejax.result import Column, Result, Table
from moejax.wording import told

INPUTS = FiveFactor.inputs
NESTED = {"Eq. 4": TwoFactor, "Eq. 7": ThreeFactor, "Eq. 9": FourFactor, "Eq. 11": FiveFactor}
RIVALS = {"Krajewski": Granularity, "Abnar": Sparsity, "Ludziejewski": ExpertCount}
"""What Fig. 5 and Appendix I refit to the same runs, as far as the table has their columns."""


@dataclass(frozen=True)
class Factor:
    """One factor of the paper: the law of its margin, and what that law says is best."""

    name: str
    law: type
    optimum: Callable[[Any], Any]


FACTORS = (
    Factor("N_a", MarginalActive, optimal_active),
    Factor("G", MarginalExperts, optimal_experts),
    Factor("S", MarginalShared, optimal_shared),
)


MARGINS = (
    Column("factor"),
    Column("groups"),
    Column("median R²", ".3f"),
    Column("best among the values trained"),
    *(Column(name, ".4g") for name in ("lower quartile", "median best", "upper quartile")),
    Column("", words=True),
)


@dataclass(frozen=True, kw_only=True)
class Margin:
    """The runs in which one factor alone varies, and the law through them."""

    factor: str
    held: dict[str, float]
    """What the other factors are."""
    runs: int
    coefficients: dict[str, float]
    best: float
    """The factor's value of least loss under the marginal law."""
    inside: bool
    """Whether ``best`` lies within the values that were trained."""
    r_squared: float


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A law fitted to the runs that were not held out; the average errors are in nats per token (Fig. 5)."""

    name: str
    fit: FitResult
    error: float
    held_out_error: float


@dataclass(frozen=True, kw_only=True)
class ZhaoRecipe:
    """What the procedure finds in a table."""

    split: str
    margins: tuple[Margin, ...]
    nested: tuple[Fitted, ...]
    rivals: tuple[Fitted, ...]
    left_out: dict[str, str]
    decisions: dict[str, float]
    intervals: dict[str, Any]
    """90 % intervals of the decisions, if resamples were asked for."""

    @property
    def law(self) -> FiveFactor:
        """Eq. 11 as fitted."""
        return self.nested[-1].fit.law

    def summary(self) -> Result:
        """Margins, laws, decisions."""
        laws = [
            [one.name, type(one.fit.law).__name__, len(one.fit.coefficients), one.error, one.held_out_error]
            for one in (*self.nested, *self.rivals)
        ]
        law_columns = (
            Column("law"),
            Column("class", words=True),
            Column("coefficients"),
            Column("average error", ".5f"),
            Column("held out", ".5f"),
        )
        decided = [[name, value, self.intervals.get(name, "")] for name, value in self.decisions.items()]
        decided_columns = (Column(""), Column("value", ".4g"), Column("median [90% interval]", str, words=True))
        left_out = [f"{name} is left out: {reason}" for name, reason in self.left_out.items()]
        return Result(
            title=f"Zhao et al. (2025) on this table; held out: {self.split}",
            warnings=self.nested[-1].fit.warnings,
            tables=[
                Table("Margins (one factor varied)", MARGINS, [self._margins(factor.name) for factor in FACTORS]),
                Table("Laws", law_columns, laws, left_out),
                Table("Decisions under Eq. 11", decided_columns, decided),
            ],
            data=self.to_json(),
        )

    def _margins(self, factor: str) -> list[Any]:
        """What the groups say in which a factor alone varies, in the columns of ``MARGINS``."""
        margins = [margin for margin in self.margins if margin.factor == factor]
        if not margins:
            return [factor, 0, *[None] * 5, "no group of runs varies it alone in enough values"]
        r_squared = float(np.median([m.r_squared for m in margins]))
        best = [margin.best for margin in margins if margin.inside]
        if not best:
            return [factor, len(margins), r_squared, 0, *[None] * 3, "none has its optimum among the values trained"]
        low, middle, high = np.quantile(best, [0.25, 0.5, 0.75]).tolist()
        return [factor, len(margins), r_squared, len(best), low, middle, high, None]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        fitted = {
            part: [
                {"name": f.name, "error": f.error, "held_out_error": f.held_out_error, "fit": f.fit.to_json()}
                for f in getattr(self, part)
            ]
            for part in ("nested", "rivals")
        }
        margins = [
            dataclasses.asdict(m) | {"r_squared": m.r_squared if np.isfinite(m.r_squared) else None}
            for m in self.margins
        ]
        return {
            "recipe": "zhao",
            "held_out": self.split,
            "margins": margins,
            **fitted,
            "left_out": self.left_out,
            "decisions": self.decisions,
            "intervals": {k: {"low": v.low, "middle": v.middle, "high": v.high} for k, v in self.intervals.items()},
        }


def zhao(
    runs: Runs,
    held_out: Split,
    *,
    resamples: int = 0,
    starts: Starts | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> ZhaoRecipe:
    """Margins of N_a, G and S; Eq. 4, 7, 9 and 11 on the runs that are not held out; and the rivals on the same.

    Margins use every run, as the paper's do. A group needs one value more than its law has coefficients.

    Raises:
      UserError: the runs lack a field that Eq. 11 reads, or are too few for it.
    """
    report = progress or (lambda *_: None)
    starts = starts or Sobol(seed=seed)
    margins = [margin for factor in FACTORS for margin in margins_of(factor, runs, seed=seed, progress=progress)]
    kept = runs.only(~held_out.held_out)
    nested = []
    for number, (name, law) in enumerate(NESTED.items()):
        report("nested laws", number, len(NESTED))
        nested.append(_fitted(name, law, runs, kept, held_out, starts))
    rivals, left_out = [], {}
    for name, law in RIVALS.items():
        try:
            rivals.append(_fitted(name, law, runs, kept, held_out, starts))
        except ValueError as error:
            left_out[name] = told(error)
    fit = nested[-1].fit
    resampled = bootstrap(fit, kept, resamples, seed=seed, progress=progress) if resamples else None
    return ZhaoRecipe(
        split=held_out.name,
        margins=tuple(margins),
        nested=tuple(nested),
        rivals=tuple(rivals),
        left_out=left_out,
        decisions={name: float(decide(fit.law)) for name, decide in DECISIONS.items()},
        intervals={name: resampled.interval(decide) for name, decide in DECISIONS.items()} if resampled else {},
    )


DECISIONS: Mapping[str, Callable[[Any], Any]] = {"G*": best_active_experts, "S*": best_shared_share}


def _fitted(name: str, law: type, runs: Runs, kept: Runs, held_out: Split, starts: Starts) -> Fitted:
    fit = fit_law(law, kept, starts=starts)
    outside = metrics(fit.law, runs.only(held_out.held_out), fit.output)
    return Fitted(name=name, fit=fit, error=fit.metrics.mae, held_out_error=outside.mae)


def margins_of(factor: Factor, runs: Runs, *, seed: int = 0, progress: Progress | None = None) -> list[Margin]:
    """The marginal law of one factor in every group of runs that differ in it alone."""
    report = progress or (lambda *_: None)
    known = _factors(runs)
    varied = known[factor.name]
    others = {name: values for name, values in known.items() if name != factor.name}
    free = len(dataclasses.fields(factor.law))
    _, label = np.unique(np.stack(list(others.values())), axis=1, return_inverse=True)
    groups = [label.ravel() == number for number in range(label.max() + 1)]
    groups = [g & (runs.weight > 0) for g in groups]
    groups = [g for g in groups if len(np.unique(varied[g])) > free]
    margins = []
    for number, group in enumerate(groups):
        report(f"margins of {factor.name}", number, len(groups))
        fit = fit_law(factor.law, runs.only(group), starts=Sobol(MARGIN_STARTS, seed))
        (best,) = (float(value) for value in factor.optimum(fit.law).value.values())
        margins.append(
            Margin(
                factor=factor.name,
                held={name: float(values[group][0]) for name, values in others.items()},
                runs=int(group.sum()),
                coefficients={name: float(value) for name, value in coefficients(fit.law).items()},
                best=best,
                inside=bool(varied[group].min() < best < varied[group].max()),
                r_squared=fit.metrics.r_squared,
            )
        )
    return margins


MARGIN_STARTS = 32
"""A margin has three or four coefficients, in two of three cases linear ones: it needs few starts."""


def _factors(runs: Runs) -> dict[str, np.ndarray]:
    """The five factors in the paper's letters; ratios are rounded, so that equal ones are equal."""
    design = runs.design
    if missing := [name for name in INPUTS if getattr(design, name) is None]:
        raise UserError(f"The recipe reads {', '.join(INPUTS)}, and the runs have no {', '.join(missing)}.")
    factors = {
        "N": design.params_total_nonembedding,
        "D": design.tokens,
        "N_a": design.params_active_nonembedding,
        "G": np.round(design.active_experts, 9),
        "S": np.round(design.shared_share, 9),
    }
    return {name: np.asarray(values, np.float64) for name, values in factors.items()}
