"""Run the procedure of Zhao et al. (2025): margins by group, nested laws with two to five factors, and rival laws."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.starts import Sobol, Starts
from moejax.fit.selection.holdout import Split
from moejax.fit.selection.metrics import metrics, predict
from moejax.fit.uncertainty.bootstrap import bootstrap
from moejax.fit.uncertainty.covariance import with_uncertainty
from moejax.json_text import finite
from moejax.laws import LAWS
from moejax.laws.design import FIELDS
from moejax.laws.mixtures.expert_count import ExpertCount
from moejax.laws.mixtures.fewer_factors import FourFactor, ThreeFactor, TwoFactor
from moejax.laws.mixtures.five_factor import FiveFactor, best_active_experts, best_shared_share
from moejax.laws.mixtures.granularity import Granularity
from moejax.laws.mixtures.routed import Routed
from moejax.laws.mixtures.sparsity import Sparsity
from moejax.papers.zhao.margins import (
    FACTORS,
    AtStructure,
    Hooks,
    Margin,
    at_each_structure,
    coefficient_table,
    hooks_of,
    margins_of,
    with_gamma_of,
)
from moejax.result import BLANK, LOW_HIGH, Column, Result, Table, Written
from moejax.wording import told

if TYPE_CHECKING:
    import pandas as pd

NESTED = {"Eq. 4": TwoFactor, "Eq. 7": ThreeFactor, "Eq. 9": FourFactor, "Eq. 11": FiveFactor}
RIVALS = {"Krajewski": Granularity, "Abnar": Sparsity, "Ludziejewski": ExpertCount, "Clark": Routed}
"""Laws that Figure 5 and Appendix I refit to the same runs, if the table has their columns."""


MARGINS = (
    Column("factor"),
    Column("groups"),
    Column("median R²", ".3f"),
    Column("best among the values trained"),
    *(Column(name, ".4g") for name in ("lower quartile", "median best", "upper quartile")),
    Column("", words=True),
)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A law fitted to the runs that were not held out; average errors are in nats per token (Figure 5)."""

    name: str
    fit: FitResult
    error: float
    held_out_error: float


@dataclass(frozen=True, kw_only=True)
class ZhaoRecipe:
    """Results of the procedure on a table."""

    runs: Runs
    held_out: Split
    margins: tuple[Margin, ...]
    active: tuple[Margin, ...]
    """Margins of N_a with Eq. 11's exponent."""
    structures: tuple[AtStructure, ...]
    """Fits of Eq. 7 at every G and S whose runs determine a, c and h."""
    hooks: Hooks | None
    without_hooks: str
    """Reason why there are no hooks, as a sentence; empty if there are hooks."""
    nested: tuple[Fitted, ...]
    rivals: tuple[Fitted, ...]
    left_out: dict[str, str]
    decisions: dict[str, float]
    intervals: dict[str, Any]
    """90 % intervals of the decisions, if resamples were requested."""

    @property
    def laws(self) -> tuple[Fitted, ...]:
        """All fitted laws."""
        return (*self.nested, *self.rivals)

    @property
    def law(self) -> FiveFactor:
        """Fitted Eq. 11."""
        return self.nested[-1].fit.law

    def fits(self, dropped: tuple[str, ...] = ()) -> dict[str, FitResult]:
        """Return every fit with its uncertainty, keyed by law name. A saved fit then gives intervals without the runs.

        Args:
          dropped: messages about omitted table rows, with reasons.
        """
        kept = self.runs.only(~self.held_out.held_out)
        return {NAMES[type(one.fit.law)]: with_uncertainty(one.fit, kept, dropped=dropped) for one in self.laws}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return tables of marginal and law coefficients, and of predicted and measured losses, keyed by file name."""
        import pandas as pd

        laws = [
            {"law": one.name, "class": type(one.fit.law).__name__, "coefficient": name, "value": value}
            for one in self.laws
            for name, value in one.fit.coefficients.items()
        ]
        predictions = [predictions_of(one.name, one.fit, self.runs, self.held_out) for one in self.laws]
        hooks = {} if self.hooks is None else {"hooks": self.hooks.frame()}
        return hooks | {
            "marginal_coefficients": coefficient_table(self.margins, self.active, self.structures),
            "coefficients": pd.DataFrame(laws),
            "predicted_vs_actual": pd.concat(predictions),
        }

    def summary(self) -> Result:
        """Return tables of margins, hooks, laws and decisions."""
        laws = [
            [one.name, type(one.fit.law).__name__, len(one.fit.coefficients), one.error, one.held_out_error]
            for one in self.laws
        ]
        law_columns = (
            Column("law"),
            Column("class", words=True),
            Column("coefficients"),
            Column("average error", ".5f"),
            Column("held out", ".5f"),
        )
        decided = [[name, value, self._interval(name)] for name, value in self.decisions.items()]
        decided_columns = (
            Column(""),
            Column("value", ".4g"),
            Column("median [90% interval, bootstrap]", words=True, keys=("median", *LOW_HIGH)),
        )
        left_out = [f"{name} is left out: {reason}" for name, reason in self.left_out.items()]
        hooks = Table("", notes=[f"No hooks of Eq. 7: {self.without_hooks}"])
        return Result(
            title=f"Zhao et al. (2025) on this table; held out: {self.held_out.name}",
            warnings=self.nested[-1].fit.warnings,
            tables=[
                Table("Margins (one factor varied)", MARGINS, [self._margins(factor.name) for factor in FACTORS]),
                self.hooks.table() if self.hooks else hooks,
                Table("Laws", law_columns, laws, left_out),
                Table("Decisions under Eq. 11", decided_columns, decided),
            ],
            data=self.to_json(),
        )

    def _interval(self, name: str) -> Written:
        one = self.intervals.get(name)
        return BLANK if one is None else Written((one.middle, one.low, one.high), str(one))

    def _margins(self, factor: str) -> list[Any]:
        """Return the summary of a factor's margins, in the columns of ``MARGINS``."""
        margins = [margin for margin in self.margins if margin.factor == factor]
        if not margins:
            return [factor, 0, *[None] * 5, "no group of runs varies only this factor with enough values"]
        r_squared = float(np.median([m.r_squared for m in margins]))
        best = [margin.best for margin in margins if margin.inside]
        if not best:
            return [
                factor,
                len(margins),
                r_squared,
                0,
                *[None] * 3,
                "no group has its optimum within the trained range",
            ]
        low, middle, high = np.quantile(best, [0.25, 0.5, 0.75]).tolist()
        return [factor, len(margins), r_squared, len(best), low, middle, high, None]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name."""
        fitted = {
            part: [
                {"name": f.name, "error": f.error, "held_out_error": f.held_out_error, "fit": f.fit.to_json()}
                for f in getattr(self, part)
            ]
            for part in ("nested", "rivals")
        }
        return {
            "recipe": "zhao",
            "held_out": self.held_out.name,
            "margins": finite(self.margins),
            "hooks": None if self.hooks is None else finite(self.hooks),
            **fitted,
            "left_out": self.left_out,
            "decisions": self.decisions,
            "intervals": finite(
                {k: {"low": v.low, "middle": v.middle, "high": v.high} for k, v in self.intervals.items()}
            ),
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
    """Fit margins of N_a, G and S, then Eqs. 4, 7, 9 and 11 and the rival laws to the runs that are not held out.

    Margins use every run, as in the paper.

    Raises:
      UserError: the runs lack an input of Eq. 11, or there are too few.
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
    active = with_gamma_of(fit.law, runs, seed=seed, progress=progress)
    structures = at_each_structure(fit.law, runs, seed=seed, progress=progress)
    hooks, without_hooks = None, ""
    try:
        hooks = hooks_of(fit.law, runs)
    except UserError as error:
        without_hooks = told(error)
    resampled = bootstrap(fit, kept, resamples, seed=seed, progress=progress) if resamples else None
    return ZhaoRecipe(
        runs=runs,
        held_out=held_out,
        margins=tuple(margins),
        active=tuple(active),
        structures=tuple(structures),
        hooks=hooks,
        without_hooks=without_hooks,
        nested=tuple(nested),
        rivals=tuple(rivals),
        left_out=left_out,
        decisions={name: float(decide(fit.law)) for name, decide in DECISIONS.items()},
        intervals={name: resampled.interval(decide) for name, decide in DECISIONS.items()} if resampled else {},
    )


NAMES = {law: name for name, law in LAWS.items()}


def step(name: str, runs: Runs, held_out: Split | None, *, starts: Starts | None = None) -> pd.DataFrame:
    """Fit one of Eqs. 4 to 11 to the runs that are not held out, and return its ``predictions_of``.

    Raises:
      UserError: the runs lack an input of the law, or there are too few.
    """
    fit = fit_law(NESTED[name], runs if held_out is None else runs.only(~held_out.held_out), starts=starts)
    return predictions_of(name, fit, runs, held_out)


def marginal_table(runs: Runs, law: FiveFactor | None = None) -> pd.DataFrame:
    """Return ``coefficient_table`` for Eqs. 5, 7, 8 and 10. The joint ``law`` is fitted to the runs by default.

    Raises:
      UserError: the runs lack an input of Eq. 11, or there are too few.
    """
    joint: Any = law or fit_law(FiveFactor, runs).law
    margins = [margin for factor in FACTORS for margin in margins_of(factor, runs)]
    return coefficient_table(margins, with_gamma_of(joint, runs), at_each_structure(joint, runs))


def compared(runs: Runs, held_out: Split | None, *, starts: Starts | None = None) -> pd.DataFrame:
    """Fit Eq. 11 and the rival laws whose inputs the runs have, and return their ``predictions_of`` (Figure 5).

    Raises:
      UserError: the runs lack an input of Eq. 11, or there are too few.
    """
    import pandas as pd

    known = {f for f in FIELDS if getattr(runs.design, f) is not None}
    laws = {name: law for name, law in RIVALS.items() if known.issuperset(law.inputs)} | {"Eq. 11": FiveFactor}
    kept = runs if held_out is None else runs.only(~held_out.held_out)
    fits = {name: fit_law(law, kept, starts=starts) for name, law in laws.items()}
    return pd.concat(predictions_of(name, fit, runs, held_out) for name, fit in fits.items())


def predictions_of(name: str, fit: FitResult, runs: Runs, held_out: Split | None) -> pd.DataFrame:
    """Return predicted and measured losses of every run with positive weight.

    Columns are ``law``, ``role``, ``tokens``, ``output``, ``measured`` and ``predicted``.
    """
    import pandas as pd

    kept = runs.weight > 0
    away = np.zeros(len(runs), bool) if held_out is None else held_out.held_out
    table = {
        "law": name,
        "role": np.where(away, "held out", "fitted"),
        "tokens": np.asarray(runs.design.tokens),
        "output": fit.output,
        "measured": runs.loss,
        "predicted": predict(fit.law, runs, fit.output),
    }
    return pd.DataFrame(table).loc[kept]


DECISIONS: Mapping[str, Callable[[Any], Any]] = {"G*": best_active_experts, "S*": best_shared_share}


def _fitted(name: str, law: type, runs: Runs, kept: Runs, held_out: Split, starts: Starts) -> Fitted:
    fit = fit_law(law, kept, starts=starts)
    outside = metrics(fit.law, runs.only(held_out.held_out), fit.output)
    return Fitted(name=name, fit=fit, error=fit.metrics.mae, held_out_error=outside.mae)
