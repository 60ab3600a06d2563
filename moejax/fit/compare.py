"""Every law that a table allows, on the same runs, under the same penalty, tested on the same held-out runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import HeldOut, Split, hold_out, pooled
from moejax.fit.objective import Penalty
from moejax.fit.runs import Runs

AS_GOOD = 1.1
"""A held-out error within this factor of the lowest is not worse: a few runs cannot tell them apart."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One law among others."""

    name: str
    fit: FitResult
    held_out: tuple[HeldOut, ...]

    @property
    def errors(self) -> Mapping[str, float]:
        """Errors over all held-out runs together."""
        return pooled(self.held_out)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Laws by their held-out error, the best first, and the laws that could not be fitted with the reason."""

    laws: tuple[Compared, ...]
    left_out: dict[str, str]

    @property
    def verdict(self) -> str:
        """Which law to trust for extrapolation, and why, in sentences."""
        best = self.laws[0]
        lowest = best.errors["rmse"]
        close = [law for law in self.laws if law.errors["rmse"] <= AS_GOOD * lowest]
        simplest = min(close, key=lambda law: len(law.fit.coefficients))
        text = f"{best.name} predicts the held-out runs best (RMSE {lowest:.4f} nats)."
        if simplest is not best:
            text += (
                f" {simplest.name} does so within {AS_GOOD - 1:.0%} with {len(simplest.fit.coefficients)} coefficients "
                f"instead of {len(best.fit.coefficients)}: extrapolate with it."
            )
        if simplest.fit.warnings:
            text += f" Of {simplest.name}: {' '.join(simplest.fit.warnings)}"
        return text

    def table(self) -> str:
        """One line per law, in Markdown."""
        head = (
            "law",
            "coefficients",
            "RMSE fitted",
            "RMSE held out",
            "largest error held out",
            "AICc",
            "not determined",
        )
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for law in self.laws:
            cells = (
                law.name,
                str(len(law.fit.coefficients)),
                f"{law.fit.metrics.rmse:.5f}",
                f"{law.errors['rmse']:.5f}",
                f"{law.errors['max_relative_error']:.2%}",
                f"{law.fit.aicc:.1f}",
                str(len(law.fit.stuck) + len(law.fit.cannot_tell)),
            )
            lines.append(f"| {' | '.join(cells)} |")
        lines += [f"{name} is left out: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        laws = [{"name": law.name, "held_out": dict(law.errors), "fit": law.fit.to_json()} for law in self.laws]
        return {"laws": laws, "left_out": self.left_out, "verdict": self.verdict}


def compare(
    laws: Mapping[str, Any],
    runs: Runs,
    splits: Iterable[Split],
    *,
    penalty: Penalty | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Fit every law to all runs and to what each split leaves.

    Raises:
      ValueError: no law can be fitted to these runs; the sentence has every law's reason.
    """
    splits = list(splits)
    found, left_out = [], {}
    for number, (name, law) in enumerate(laws.items()):
        if progress:
            progress("laws", number, len(laws))
        try:
            fit = fit_law(law, runs, penalty=penalty, seed=seed)
            held_out = hold_out(law, runs, splits, penalty=penalty, seed=seed)
        except ValueError as error:
            left_out[name] = str(error)
            continue
        found.append(Compared(name=name, fit=fit, held_out=tuple(held_out)))
    if not found:
        raise ValueError("No law can be fitted: " + " ".join(f"{name}: {why}" for name, why in left_out.items()))
    return Comparison(laws=tuple(sorted(found, key=lambda law: law.errors["rmse"])), left_out=left_out)


def of_the_loss(laws: Mapping[str, type], names: Sequence[str] = ()) -> dict[str, type]:
    """The laws that predict a loss and are searched coefficient by coefficient, or those that are named."""
    return {
        name: law
        for name, law in laws.items()
        if (name in names if names else "loss" in law.outputs and name not in LINEAR)
    }


LINEAR = ("isoflop_surface",)
"""Laws that are linear in their coefficients and hold for one budget: their own file solves them."""
