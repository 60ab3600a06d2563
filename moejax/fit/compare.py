"""Every law that a table allows, on the same runs, under the same penalty, tested on the same held-out runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from moejax.fit.bootstrap import Interval, group_draws, interval
from moejax.fit.fit_law import Progress, fit_law
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import HeldOut, Split, beyond, hold_out, pooled
from moejax.fit.metrics import Metrics, plain
from moejax.fit.objective import Penalty
from moejax.fit.runs import Runs

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
        head = (
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
        lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
        for law in self.laws:
            cells = (
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
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", f"RMSE in nats/token. Held out: {'; '.join(split.name for split in self.splits)}."]
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
    """Fit every law to all runs and to what each split leaves.

    Args:
      fixed: coefficients that are given, to every law that has them.

    Raises:
      ValueError: nothing is held out, a given coefficient is in no law, or no law can be fitted to these runs; the
        sentence has every law's reason.
    """
    splits, fixed = list(splits), dict(fixed or {})
    if not splits:
        raise ValueError("Laws are compared by held-out runs; give at least one split.")
    names = {name: {f.name for f in fields(law)} for name, law in laws.items()}
    if unknown := [name for name in fixed if not any(name in known for known in names.values())]:
        raise ValueError(f"None of the laws has a coefficient {unknown[0]}; they have {_listed(names.values())}.")
    found, left_out = [], {}
    for number, (name, law) in enumerate(laws.items()):
        if progress:
            progress("laws", number, len(laws))
        given = {key: value for key, value in fixed.items() if key in names[name]}
        try:
            fit = fit_law(law, runs, penalty=penalty, fixed=given, seed=seed)
            held_out = hold_out(law, runs, splits, penalty=penalty, fixed=given, seed=seed)
        except ValueError as error:
            left_out[name] = str(error)
            continue
        found.append(Compared(name=name, fit=fit, held_out=tuple(held_out)))
    if not found:
        raise ValueError("No law can be fitted: " + " ".join(f"{name}: {why}" for name, why in left_out.items()))
    return Comparison(
        laws=tuple(sorted(found, key=_held_out_error)),
        left_out=left_out,
        splits=tuple(splits),
        beyond=beyond(runs, splits),
        fixed=fixed,
        seed=seed,
    )


def _held_out_error(law: Compared) -> float:
    """RMSE; a law that gives no number for a held-out run comes last."""
    error = law.errors.rmse
    return error if np.isfinite(error) else float("inf")


def of_the_loss(laws: Mapping[str, type], names: Sequence[str] = ()) -> dict[str, type]:
    """The laws that predict a loss, or those that are named."""
    return {name: law for name, law in laws.items() if (name in names if names else "loss" in law.outputs)}


def _behind_in_words(found: Interval) -> str:
    if not np.isfinite(found.low):
        return "one group of runs cannot tell"
    return f"{found.middle:+.5f} [{found.low:+.5f}, {found.high:+.5f}]"


def _listed(names: Iterable[Iterable[str]]) -> str:
    return ", ".join(dict.fromkeys(name for known in names for name in known))
