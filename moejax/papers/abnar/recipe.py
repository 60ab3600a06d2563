"""Run the procedure of Abnar et al. (2025): fit Eq. 6 from Table 2's initial guesses, then IsoFLOP surfaces and
optima."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from moejax.errors import UserError
from moejax.fit.fit_result import FitResult
from moejax.fit.runs import Runs
from moejax.fit.search.fit_law import Progress, fit_law
from moejax.fit.search.starts import ABNAR_GRID, Starts
from moejax.fit.selection.holdout import Split, at_least
from moejax.fit.selection.metrics import Metrics, metrics
from moejax.fit.summary import resampled
from moejax.fit.uncertainty.bootstrap import Bootstrap, bootstrap
from moejax.interval import check_level, in_percent
from moejax.json_text import finite
from moejax.laws.mixtures.sparsity import Sparsity
from moejax.papers.abnar.isoflop_analysis import Isoflops, analyse, best_sizes_by_law
from moejax.papers.abnar.isoflop_budgets import first, isoflop_budgets, sparsity_of
from moejax.result import Column, Result, Table, percent

HELD_OUT_FROM = 0.98
"""Minimum sparsity of the runs that are held out to test Eq. 6 (Section 5)."""
RESAMPLES = 100
"""Number of resamples (Appendix B)."""
RESAMPLE_ITERATIONS = 5000
"""Iterations per resample. Eq. 6 has long flat valleys: after 500 steps almost no resample has converged."""


@dataclass(frozen=True, kw_only=True)
class AbnarRecipe:
    """Results of the procedure on a table."""

    split: str
    fit: FitResult
    """Fit of Eq. 6 to the runs that were not held out."""
    held_out: Metrics
    resampled: Bootstrap
    level: float
    total: Isoflops
    """Surfaces over total parameters (Figure 1a)."""
    active: Isoflops | None
    """Surfaces over active parameters (Figure 1b); None if the table has no active parameters."""
    left_out: tuple[str, ...]

    @property
    def law(self) -> Sparsity:
        """Fitted Eq. 6."""
        return self.fit.law

    def summary(self) -> Result:
        """Return tables of Eq. 6, surfaces, optima and trends."""
        fit, surfaces = self.fit, [one for one in (self.total, self.active) if one]
        errors = [
            [words, m.runs, m.rmse**2, m.rmse, m.r_squared, m.max_relative_error]
            for words, m in (("fitted", fit.metrics), ("held out", self.held_out))
        ]
        error_columns = (
            Column(""),
            Column("runs"),
            Column("MSE", ".3g"),
            Column("RMSE, nats", ".5f"),
            Column("R²", ".4f"),
            Column("largest error", percent(2)),
        )
        missing = [] if self.active else ["N_a* is left out: the table has no params_active in every row."]
        return Result(
            title=f"Abnar et al. (2025) on this table; held out from Eq. 6: {self.split}",
            warnings=fit.warnings,
            tables=[
                dataclasses.replace(fit.coefficient_table(self.level), title=f"Eq. 6 from {fit.starts} starts"),
                resampled(self.resampled.stored(self.level)),
                Table("Errors of Eq. 6", error_columns, errors),
                *(table for one in surfaces for table in one.tables()),
            ],
            notes=[
                *missing,
                *(f"Left out: {sentence}" for sentence in first(self.left_out)),
                f"Intervals are {in_percent(self.level)}; ? marks values that these runs do not determine.",
            ],
            data=self.to_json(),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain data for JSON, keyed by name; non-finite values are null."""
        return {
            "recipe": "abnar",
            "held_out": self.split,
            "fit": self.fit.to_json(),
            "held_out_errors": finite(self.held_out),
            "intervals": finite(self.resampled.stored(self.level)),
            "total": self.total.to_json(),
            "active": self.active.to_json() if self.active else None,
            "left_out": list(self.left_out),
        }


def abnar(
    runs: Runs,
    held_out: Split | None = None,
    *,
    resamples: int = RESAMPLES,
    starts: Starts = ABNAR_GRID,
    level: float = 0.9,
    seed: int = 0,
    progress: Progress | None = None,
) -> AbnarRecipe:
    """Fit Eq. 6 to the runs that are not held out, then surfaces over N and N_a to all runs of each budget.

    Args:
      held_out: test runs of Eq. 6; by default the runs with a sparsity of at least 0.98, or else the sparsest runs.

    Raises:
      UserError: a column is missing, no budget has several sparsities and sizes, or there are too few runs.
    """
    check_level(level)
    if resamples < 1:
        raise UserError(f"The number of resamples is {resamples}; it must be at least 1.")
    budgets, left_out = isoflop_budgets(runs)
    held_out = held_out or sparsest(runs)
    kept = runs.only(~held_out.held_out)
    fit = fit_law(Sparsity, kept, starts=starts, seed=seed, progress=progress)
    resampled = bootstrap(fit, kept, resamples, seed=seed, max_iterations=RESAMPLE_ITERATIONS, progress=progress)
    options: dict[str, Any] = {"resamples": resamples, "seed": seed, "level": level, "progress": progress}
    active = runs.design.params_active
    by_law = [best for budget in budgets for best in best_sizes_by_law(fit.law, resampled, budget, level)]
    return AbnarRecipe(
        split=held_out.name,
        fit=fit,
        held_out=metrics(fit.law, runs.only(held_out.held_out), fit.output),
        resampled=resampled,
        level=level,
        total=analyse("N", budgets, by_law=by_law, sparsities=True, **options),
        active=None if active is None else analyse("N_a", [one.by_active() for one in budgets], **options),
        left_out=left_out,
    )


def sparsest(runs: Runs) -> Split:
    """Return the split that holds out runs with a sparsity of at least 0.98, or with the largest sparsity if it is
    lower."""
    sparsity = sparsity_of(runs)
    largest = float(sparsity[runs.weight > 0].max())
    return at_least(runs, "sparsity", sparsity, min(HELD_OUT_FROM, largest))
