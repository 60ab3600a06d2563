"""Which runs decide an answer, by differentiating through the optimum: no refit, exact to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.fit.fit_law import fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.optimum import Decision, optimum
from moejax.fit.runs import Runs
from moejax.fit.starts import Given
from moejax.quantities import format


@dataclass(frozen=True, kw_only=True)
class Influence:
    """How every run moves one number."""

    answer: float
    per_nat: Float[np.ndarray, " runs"]
    """What the answer gains per nat more in a run's loss; 0 for a run that Huber's penalty treats as an outlier."""
    if_removed: Float[np.ndarray, " runs"]
    """What the answer gains, to first order, if the run had not been trained."""

    def most(self, count: int = 3) -> list[int]:
        """Numbers of the runs whose removal moves the answer most."""
        return [int(i) for i in np.argsort(-np.abs(self.if_removed))[:count]]

    def sentence(self, name: str, labels: Sequence[str] | None = None, count: int = 3) -> str:
        """Which runs decide the answer, in words."""
        parts = []
        for i in self.most(count):
            label = labels[i] if labels is not None else f"run {i + 1}"
            parts.append(f"without {label} it would be {self.answer + self.if_removed[i]:.4g}")
        return f"{name} is {self.answer:.4g}; " + ", ".join(parts) + "."


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """The runs that decide an answer most, and what it is without them, fitted again."""

    answer: float
    runs: tuple[int, ...]
    """Numbers of the runs, the most decisive first."""
    foretold: tuple[float, ...]
    """The answer without each of them, to first order."""
    refitted: tuple[float, ...]
    """The answer of a fit without each of them."""
    without_all: float
    """The answer of a fit without all of them."""

    def text(self, title: str, labels: Sequence[str]) -> str:
        """The finding in words, the runs by their labels."""
        lines = [f"{title} is {_number(self.answer)}; the runs that decide it most:"]
        for label, foretold, refitted in zip(labels, self.foretold, self.refitted, strict=True):
            lines.append(f"  without {label} it is {_number(refitted)} (foretold {_number(foretold)})")
        lines.append(f"  without all of these it is {_number(self.without_all)} ({self._moved()}).")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not finite is null."""
        every = {"answer": self.answer, "without_all": self.without_all}
        each = {"foretold": self.foretold, "refitted": self.refitted}
        return {name: _plain(value) for name, value in every.items()} | {
            name: [_plain(value) for value in values] for name, values in each.items()
        }

    def _moved(self) -> str:
        share = self.without_all / self.answer - 1 if self.answer else np.nan
        return f"{share:+.1%}" if np.isfinite(share) else "no answer"


def deciding(result: FitResult, runs: Runs, decision: Decision, count: int = 3) -> Deciding:
    """The ``count`` runs whose removal moves one number most, by implicit differentiation, checked by refits.

    Raises:
      UserError: the decision is more than one number, or too few runs would be left to fit.
    """
    found = influence(result, runs, decision)
    if len(found) != 1 or not np.isfinite(found[0].answer):
        raise UserError(f"Influence is asked of one finite number; the decision gave {[one.answer for one in found]}.")
    (one,) = found
    most = one.most(min(count, int((runs.weight > 0).sum())))

    def without(left_out: Sequence[int]) -> float:
        kept = ~np.isin(np.arange(len(runs)), left_out)
        start = Given((result.law,))
        refit = fit_law(
            type(result.law),
            runs.only(kept),
            penalty=result.penalty,
            starts=start,
            fixed=result.fixed,
            output=result.output,
        )
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            return float(decision(refit.law))

    return Deciding(
        answer=one.answer,
        runs=tuple(most),
        foretold=tuple(float(one.answer + one.if_removed[i]) for i in most),
        refitted=tuple(without([i]) for i in most),
        without_all=without(most),
    )


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _number(value: float) -> str:
    return format(value, 5) if np.isfinite(value) else "without an answer"


def influence(result: FitResult, runs: Runs, decision: Decision) -> list[Influence]:
    """Influence of every run on every number of a decision, in the order of its leaves.

    At an optimum the slope of the objective is 0 whatever the losses are; differentiating that in the losses gives
    du/dL = -H⁻¹ · ∂²F/∂u∂L, and in the weights du/dw = -H⁻¹ · ∂F_i/∂u (the implicit function theorem).
    """
    at = optimum(result, runs)
    answers, _ = at.decide(decision)
    slopes = at.slopes(decision)
    per_nat = -slopes @ at.solve((at.weight[:, None] * at.bends).T)
    if_removed = slopes @ at.solve((at.weight[:, None] * at.scores).T)
    return [
        Influence(answer=float(a), per_nat=n, if_removed=r)
        for a, n, r in zip(answers, per_nat, if_removed, strict=True)
    ]
