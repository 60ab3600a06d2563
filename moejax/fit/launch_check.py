"""Whether a scaling law is good enough to launch a large training on it: three checks and a verdict.

Book chapter "MoE Scaling Laws" (chapter 002), "How a frontier team validates a scaling-law prediction before launch".
Its "two orders of magnitude in activated count and G" is read as: of active parameters, while G must vary enough for
its exponent to be determined, which the third check sees.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from moejax.fit.bootstrap import draws_of
from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import Split
from moejax.fit.metrics import predict
from moejax.fit.runs import Runs
from moejax.result import Column, Result, Table

FEWEST_PROXIES = 20
"""Groups of runs: budgets of one model share its luck, and count once."""
SPAN = 100.0
"""Two orders of magnitude, in active parameters."""
TOLERANCE_NATS = 0.02
"""How far the held-out run's loss may be from its prediction."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One condition: what it is, its outcome, whether it holds; None where the table cannot say."""

    name: str
    outcome: str
    holds: bool | None


@dataclass(frozen=True, kw_only=True)
class LaunchCheck:
    """The law of the proxies and what speaks for and against launching on it."""

    fit: FitResult
    checks: tuple[Check, ...]

    @property
    def go(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def summary(self) -> Result:
        """The verdict and its conditions, for readers who know nothing of fitting."""
        words = {True: "holds", False: "FAILS", None: "not checked"}
        rows = [[words[check.holds], check.name, check.outcome] for check in self.checks]
        columns = (Column(""), Column("check", words=True), Column("outcome", words=True))
        return Result(
            title="Launch check: " + ("go" if self.go else "do not launch on this law yet"),
            warnings=self.fit.warnings,
            tables=[Table("", columns, rows)],
            data=self.to_json(),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"go": self.go, "checks": [asdict(check) for check in self.checks], "fit": self.fit.to_json()}


def launch_check(
    law: Any,
    runs: Runs,
    held_out: Split,
    *,
    pilot: Runs | None = None,
    tolerance_nats: float = TOLERANCE_NATS,
    seed: int = 0,
    progress: Progress | None = None,
) -> LaunchCheck:
    """Fit a law to the proxies and hold it to what was kept from it.

    Args:
      held_out: the larger proxies that the law must predict.
      pilot: the first part of the real training, as runs of growing token counts.

    Raises:
      UserError: the law cannot be fitted to the proxies.
    """
    proxies = runs.only(~held_out.held_out)
    fit = fit_law(law, proxies, seed=seed, progress=progress)
    trained = draws_of(proxies, "group")
    sizes = runs.design.params_active
    kept = np.ones(1) if sizes is None else sizes[proxies.weight > 0]
    span = float(kept.max() / kept.min())
    checks = [
        Check(
            name=f"at least {FEWEST_PROXIES} proxies",
            outcome=f"{trained} prox{'y' if trained == 1 else 'ies'}",
            holds=trained >= FEWEST_PROXIES,
        ),
        Check(
            name=f"active parameters span a factor of {SPAN:.0f}",
            outcome=f"a factor of {span:.3g}",
            holds=None if sizes is None else span >= SPAN,
        ),
        Check(
            name="the search converged, and the proxies set every coefficient",
            outcome=f"{len(fit.warnings)} warnings",
            holds=not fit.warnings,
        ),
        _predicts(f"held-out runs ({held_out.name})", fit, runs.only(held_out.held_out), tolerance_nats),
    ]
    if pilot is None:
        checks.append(Check(name="the pilot's early curve", outcome="no pilot was given", holds=None))
    else:
        checks.append(_predicts("the pilot's early curve", fit, pilot, tolerance_nats))
    return LaunchCheck(fit=fit, checks=tuple(checks))


def _predicts(what: str, fit: FitResult, runs: Runs, tolerance: float) -> Check:
    """Whether every one of some runs is within a tolerance of its prediction."""
    kept = runs.weight > 0
    misses = (predict(fit.law, runs, fit.output) - runs.loss)[kept]
    worst = float(misses[np.argmax(np.abs(misses))])
    return Check(
        name=f"{what} within {tolerance:g} nats of the prediction",
        outcome=f"the worst of {kept.sum()} is predicted {abs(worst):.4f} nats too {'high' if worst > 0 else 'low'}",
        holds=abs(worst) <= tolerance,
    )
