"""Laws on the same runs, tested on the same held-out runs: their errors, and which one to trust, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moejax.fit.bootstrap import Interval, group_draws, interval
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import HeldOut, Split, pooled
from moejax.fit.metrics import Metrics, plain

AS_GOOD = 1.1
"""A held-out error within this factor of the lowest is not worse: a few runs cannot tell them apart."""
RESAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One law among others."""

    name: str
    fit: FitResult
    held_out: tuple[HeldOut, ...]

    @property
    def errors(self) -> Metrics:
        """Errors over all held-out runs together."""
        return pooled(self.held_out)


COLUMNS = (
    "law",
    "coefficients",
    "RMSE fitted",
    "RMSE held out",
    "behind the best (90 %)",
    "R² held out",
    "largest error held out",
    "AICc",
    "not determined",
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Laws by their held-out error, the best first, and the laws that could not be fitted with the reason."""

    laws: tuple[Compared, ...]
    left_out: dict[str, str]
    splits: tuple[Split, ...]
    beyond: dict[str, float]
    """How many times larger the largest held-out run is than the largest fitted one, by size, where it is larger."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Coefficients that were given, to every law that has them."""
    seed: int = 0

    def behind(self, law: Compared, level: float = 0.9) -> Interval:
        """By how much a law's held-out RMSE exceeds the best law's, in nats per token, with its interval.

        The groups of held-out runs are resampled, for both laws alike; laws are not fitted again, so this is what
        these runs can tell of the two fitted laws.
        """
        misses = [np.concatenate([h.predicted - h.runs.loss for h in one.held_out]) for one in (law, self.laws[0])]
        held_out = law.held_out
        group = np.concatenate([h.runs.group for h in held_out])
        weight = np.concatenate([h.runs.weight for h in held_out])
        draws = group_draws(group, RESAMPLES, self.seed) * weight
        one, best = (np.sqrt(draws @ miss**2 / draws.sum(axis=1)) for miss in misses)
        return interval(one - best, level)

    @property
    def as_good(self) -> tuple[str, ...]:
        """Laws that these held-out runs cannot tell from the best one."""
        return tuple(law.name for law in self.laws[1:] if self.behind(law).low <= 0)

    @property
    def trusted(self) -> Compared:
        """The simplest of the laws whose held-out error is as good as the lowest."""
        lowest = self.laws[0].errors.rmse
        close = [law for law in self.laws if law.errors.rmse <= AS_GOOD * lowest] or [self.laws[0]]
        return min(close, key=lambda law: len(law.fit.coefficients))

    @property
    def verdict(self) -> str:
        """Which law to trust for extrapolation, and why, in sentences."""
        return " ".join([*self._choice(), *self._pride(), *self._reach(), *self._doubts()])

    def _choice(self) -> list[str]:
        best, trusted = self.laws[0], self.trusted
        text = [f"{best.name} predicts the held-out runs best (RMSE {best.errors.rmse:.4f} nats)."]
        if trusted is not best:
            text.append(
                f"{trusted.name} does so within {AS_GOOD - 1:.0%} ({trusted.errors.rmse:.4f}) with "
                f"{len(trusted.fit.coefficients)} coefficients instead of {len(best.fit.coefficients)}."
            )
        if self.beyond:
            why = (
                "it has the lowest error" if trusted is best else "it is as good and has fewer coefficients to go wrong"
            )
            text.append(
                f"For extrapolation trust {trusted.name}: {why} on held-out runs that reach beyond the fitted ones."
            )
        if self.as_good:
            text.append(
                f"These held-out runs cannot tell {best.name} from {', '.join(self.as_good)} (the 90 % interval of the "
                f"difference holds 0)."
            )
        return text

    def _pride(self) -> list[str]:
        """The law that fits best, if that is not one to trust."""
        proud = min(self.laws, key=lambda law: law.fit.metrics.rmse)
        if proud.errors.rmse <= AS_GOOD * self.laws[0].errors.rmse:
            return []
        times = proud.errors.rmse / self.laws[0].errors.rmse
        return [
            f"{proud.name} fits all runs closest (RMSE {proud.fit.metrics.rmse:.4f}) and misses held-out ones by "
            f"{times:.1f} times the lowest error: closeness of fit is no reason to trust it."
        ]

    def _reach(self) -> list[str]:
        if not self.beyond:
            return [
                "No held-out run is larger than all fitted ones, so this says nothing of extrapolation; hold out the "
                "largest, as --hold-out tokens does."
            ]
        farthest = ", ".join(f"{factor:.3g} times in {name}" for name, factor in self.beyond.items())
        return [f"The test reached beyond the fitted runs by up to {farthest}; farther out, nothing here was tested."]

    def _doubts(self) -> list[str]:
        warnings = self.trusted.fit.warnings
        return [f"Of {self.trusted.name}: {' '.join(warnings)}"] if warnings else []

    def table(self) -> str:
        """One line per law, what was held out, and the laws left out, in Markdown."""
        lines = [f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}"]
        lines += [f"| {' | '.join(cells)} |" for cells in self.rows()]
        return "\n".join([*lines, "", self.notes()])

    def rows(self) -> list[tuple[str, ...]]:
        """What stands under ``COLUMNS``, a law a row."""
        return [
            (
                law.name,
                str(len(law.fit.coefficients)),
                f"{law.fit.metrics.rmse:.5f}",
                f"{law.errors.rmse:.5f}",
                _behind_in_words(self.behind(law)) if law is not self.laws[0] else "",
                f"{law.errors.r_squared:.4f}",
                f"{law.errors.max_relative_error:.2%}",
                f"{law.fit.aicc:.1f}",
                str(len(law.fit.stuck) + len(law.fit.cannot_tell)),
            )
            for law in self.laws
        ]

    def notes(self) -> str:
        """What was held out, what was given, and the laws left out."""
        lines = [f"RMSE in nats/token. Held out: {'; '.join(split.name for split in self.splits)}."]
        for name, value in self.fixed.items():
            without = [law.name for law in self.laws if name not in law.fit.fixed]
            lines += ["", f"Given: {name} = {value:g}" + (f"; not in {', '.join(without)}." if without else ".")]
        if self.left_out:
            lines += ["", *(f"- {name} is left out: {reason}" for name, reason in self.left_out.items())]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain data; what is not finite is null."""
        laws = [
            {
                "name": law.name,
                "held_out": plain(law.errors),
                "behind": plain(self.behind(law)),
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
            "trusted": self.trusted.name if self.beyond else None,
            "verdict": self.verdict,
        }


def _behind_in_words(found: Interval) -> str:
    if not np.isfinite(found.low):
        return "one group of runs cannot tell"
    return f"{found.middle:+.5f} [{found.low:+.5f}, {found.high:+.5f}]"
