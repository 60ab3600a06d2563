"""Laws on the same runs, tested on the same held-out runs: their errors, and which one to trust, in words."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moejax.fit.choice import AS_GOOD, Choice, Compared, behind, choose
from moejax.fit.holdout import Split
from moejax.fit.metrics import plain
from moejax.interval import Interval

COLUMNS = (
    "law",
    "coefficients",
    "RMSE all runs",
    "RMSE held out",
    "behind the best (90 %)",
    "R² held out",
    "largest error held out",
    "AICc",
    "not set by the data",
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Laws by their held-out error, the best first, and the laws that could not be fitted with the reason."""

    laws: tuple[Compared, ...]
    left_out: dict[str, str]
    splits: tuple[Split, ...]
    beyond: dict[str, float]
    """How many times larger the largest held-out run is than the largest fitted one, by size or ratio, where it is."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Coefficients that were given, to every law that has them."""
    seed: int = 0

    def behind(self, law: Compared, level: float = 0.9) -> Interval:
        """By how much a law's held-out RMSE exceeds the best law's, in nats per token, with its interval."""
        return behind(law, self.laws[0], level)

    @functools.cached_property
    def choice(self) -> Choice:
        """The law to extrapolate with, or why these runs name none."""
        return choose(self.laws, self.beyond)

    @property
    def verdict(self) -> str:
        """Which law to trust for extrapolation, and why, in sentences."""
        best = self.laws[0]
        lowest = f"{best.name} predicts the held-out runs best (RMSE {best.errors.rmse:.4f} nats)."
        return " ".join([lowest, self.choice.sentence, *self._pride(), *self._reach(), *self._doubts()])

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
        (law,) = (law for law in self.laws if law.name == self.choice.simplest)
        return [f"Of {law.name}: {' '.join(law.fit.warnings)}"] if law.fit.warnings else []

    @property
    def next_law(self) -> str:
        """The law to fit next: the trusted one; else the simplest of those that cannot be told apart."""
        return self.choice.trusted or self.choice.simplest

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
            "trusted": self.choice.trusted,
            "tied": list(self.choice.tied),
            "verdict": self.verdict,
        }


def _behind_in_words(found: Interval) -> str:
    if not np.isfinite(found.low):
        return "one group of runs cannot tell"
    return f"{found.middle:+.5f} [{found.low:+.5f}, {found.high:+.5f}]"
