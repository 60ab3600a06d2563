"""Which law to extrapolate with, by errors on the same held-out runs; or that these runs cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.fit.extrapolation import SIZES
from moejax.fit.fit_result import FitResult
from moejax.fit.holdout import HeldOut, pooled
from moejax.fit.metrics import Metrics, by_factors
from moejax.fit.noise import NEGLIGIBLE
from moejax.interval import Interval, check_level
from moejax.wording import listed

AS_GOOD = 1.1
"""A held-out error within this factor of the lowest is as good: it decides nothing that is trained."""
LITTLE_SUPPORT = 4.0
"""A law whose AICc is this much higher has considerably less support (Burnham and Anderson 2002, Section 2.6)."""
LEAST_REACH = 2.0
"""How many times larger than every fitted run some held-out one must be before a law is named for extrapolation."""
FAR_BEYOND_NOISE = 10.0
"""A held-out error this many times the scatter of the fitted runs is no noise: the law's form does not hold there."""
WITHIN_NOISE = 2.0
"""A held-out error within this many times that scatter may be noise, whatever the spread of the held-out losses."""
RUNS_PER_COEFFICIENT = 2
"""Fewer fitted runs than this for every coefficient leave a law too free for its held-out errors to mean much."""


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

    @property
    def rmse(self) -> float:
        """Over all held-out runs together; NaN or infinite where the law gives no number for one."""
        return self.errors.rmse_of(self.fit.output)

    @property
    def missed_by(self) -> Float[np.ndarray, " runs"]:
        """By how much each held-out run is missed."""
        predicted = np.concatenate([split.predicted for split in self.held_out])
        measured = np.concatenate([split.runs.loss for split in self.held_out])
        with np.errstate(divide="ignore", invalid="ignore"):
            # What is not above 0 has no logarithm: the law then gives no number.
            return np.log(predicted / measured) if by_factors(self.fit.output) else predicted - measured

    @property
    def misses(self) -> str:
        """Why the law predicts the held-out runs too badly to be trusted beyond them; empty if it does not."""
        errors = self.errors
        scatter = max(max(split.fit.scatter for split in self.held_out), NEGLIGIBLE)
        times = errors.rmse_log / scatter
        if times > FAR_BEYOND_NOISE:
            return f"its held-out errors are {times:.3g} times the scatter of the runs it is fitted to"
        if errors.r_squared < 0 and times > WITHIN_NOISE:
            return f"it predicts the held-out runs worse than their mean would (R² {errors.r_squared:.3g})"
        return ""

    @property
    def undetermined(self) -> str:
        """Why these runs do not determine the law; empty if they do."""
        if self.fit.unidentified or self.fit.unidentified_directions:
            count = len(self.fit.unidentified) + len(self.fit.unidentified_directions)
            return f"{count} of its coefficients or their combinations are not set by the data"
        if lucky := next((split for split in self.held_out if split.left_open), None):
            return f"its error on {lucky.name} is luck: {lucky.left_open}"
        fitted, free = min(split.fit.metrics.runs for split in self.held_out), self.fit.free
        if fitted < RUNS_PER_COEFFICIENT * free:
            return f"{fitted} fitted runs are fewer than {RUNS_PER_COEFFICIENT} for each of its {free} coefficients"
        return ""


def as_low(laws: Sequence[Compared]) -> list[Compared]:
    """Return the laws whose held-out error is the lowest to every digit that is shown, of laws sorted by it."""
    return [law for law in laws if f"{law.rmse:.5f}" == f"{laws[0].rmse:.5f}"]


@dataclass(frozen=True, kw_only=True)
class ModelSelection:
    """What held-out errors say of several laws."""

    best: str
    """The law of the lowest error."""
    tied: tuple[str, ...]
    """Laws that these runs cannot tell from it."""
    preferred: str
    """To go on with: the best, if all runs together speak for it most too (AICc); else the law of fewest coefficients
    among those that these runs determine, or among all if there is none, without those that all runs together speak
    against; of several that have as few, the one of the lowest held-out error."""
    trusted: str | None
    """The law to extrapolate with; None where these runs cannot tell."""
    title: str
    """The outcome in a few words: a law's name, a tie, or that nothing is said."""
    sentence: str
    """The same with its reason."""


def by_error(laws: Sequence[Compared]) -> list[Compared]:
    """The laws by their held-out RMSE; one that gives no number for a held-out run comes last."""
    return sorted(laws, key=lambda law: law.rmse if np.isfinite(law.rmse) else float("inf"))


def behind(law: Compared, best: Compared, level: float = 0.9) -> Interval:
    """By how much a law's held-out RMSE exceeds the best law's, in ``unit_of_errors``, with its interval.

    Each group of held-out runs is left out in turn, for both laws alike (the jackknife), and the interval is Student's
    t of groups less one: right for few groups too. Laws are not fitted again, so this is what these runs can tell of
    the two fitted laws. Without a second group both ends are NaN.
    """
    group = np.concatenate([split.runs.group for split in law.held_out])
    weight = np.concatenate([split.runs.weight for split in law.held_out])
    squares = [one.missed_by**2 for one in (law, best)]
    present = np.unique(group)

    def difference(counted: np.ndarray) -> float:
        one, other = (np.sqrt(counted @ square / counted.sum()) for square in squares)
        return float(one - other)

    middle = difference(weight)
    if len(present) < 2:
        return Interval(low=np.nan, middle=middle, high=np.nan, deviation=np.nan, undefined=0.0)
    without = np.array([difference(np.where(group == one, 0.0, weight)) for one in present])
    deviation = float(np.sqrt((len(present) - 1) * np.mean((without - without.mean()) ** 2)))
    reach = float(scipy.special.stdtrit(len(present) - 1, (1 + check_level(level)) / 2)) * deviation
    return Interval(low=middle - reach, middle=middle, high=middle + reach, deviation=deviation, undefined=0.0)


def choose(laws: Sequence[Compared], beyond: Mapping[str, float]) -> ModelSelection:
    """Which law to extrapolate with.

    A law is named where its held-out error is lower than every other's beyond what these groups of runs can be wrong by
    (and by more than 10 %), that error is no more than ten times the scatter of the fitted runs and less than that of
    the held-out runs' mean, the runs determine the law's coefficients, and some held-out run is at least twice as large
    as all fitted ones. Otherwise the laws that cannot be told apart are named as a tie, or nothing is. A law that gives
    no number for a held-out run takes no part, and is named.

    Args:
      laws: fitted to the same runs and tested on the same held-out ones.
      beyond: how many times larger the largest held-out run is than the largest fitted one, by size or ratio; a law is
        extrapolated in sizes, so these count.
    """
    best, *others = by_error(laws)
    silent = [law.name for law in laws if not np.isfinite(law.rmse)]
    without = (
        f" {listed(silent)} {'gives' if len(silent) == 1 else 'give'} no number for some held-out run, and cannot be "
        f"compared."
        if silent
        else ""
    )
    others = [law for law in others if law.name not in silent]
    lowest = best.rmse
    tied = [law for law in others if not behind(law, best).low > 0 or law.rmse <= AS_GOOD * lowest]
    close = [best, *tied]
    determined = [law for law in close if not law.undetermined] or close
    # What held-out runs, which are few, cannot tell apart all runs together may.
    likeliest = min(determined, key=lambda law: law.fit.aicc)
    rivals = [law for law in determined if law is not best]
    unlikely = [law for law in determined if law.fit.aicc > likeliest.fit.aicc + LITTLE_SUPPORT]
    determined = [law for law in determined if law not in unlikely]
    agreed = bool(rivals) and best in determined and all(best.fit.aicc < law.fit.aicc for law in rivals)
    fewest = [law for law in determined if law.fit.free == min(law.fit.free for law in determined)]
    # By their held-out error, as all are sorted.
    preferred = best if agreed else fewest[0]
    names = tuple(law.name for law in tied)

    def selection(title: str, sentence: str, trusted: str | None = None) -> ModelSelection:
        return ModelSelection(
            best=best.name,
            tied=names,
            preferred=preferred.name,
            trusted=trusted,
            title=title,
            sentence=sentence + without,
        )

    if best.name in silent:
        return selection("no number", "No law is named for extrapolation: none gives a number for every held-out run.")

    reach = max((times for name, times in beyond.items() if name in SIZES), default=1.0)
    if reach < LEAST_REACH:
        how = f"reaches {reach:.3g} times beyond" if reach > 1 else "does not reach beyond"
        return selection(
            "not tested",
            f"No law is named for extrapolation: the test {how} the fitted sizes, and at least {LEAST_REACH:g} times "
            f"is needed; hold out more of the largest, or train larger ones.",
        )
    if best.undetermined:
        why = "; ".join(f"{law.name}: {law.undetermined}" for law in close if law.undetermined)
        return selection("undetermined", f"No law is named for extrapolation: these runs are too few for it ({why}).")
    if tied:
        of_them = (
            "them" if len(determined) == len(close) else "the others" if unlikely else "those that these runs determine"
        )
        more = min((law.fit.aicc - likeliest.fit.aicc for law in unlikely), default=0.0)
        against = (
            f"all runs together speak against {listed(law.name for law in unlikely)} (AICc higher than "
            f"{likeliest.name}'s by {more:.3g}{' and more' * (len(unlikely) > 1)}); "
            if unlikely
            else ""
        )
        return selection(
            f"a tie of {len(tied) + 1} laws",
            f"A tie: these held-out runs cannot tell {best.name} from {listed(names)} (the 90 % interval of the "
            f"difference in RMSE holds 0, or it is below {AS_GOOD - 1:.0%}), so they name no law for extrapolation; "
            f"{against}{_agreed(best) if agreed else f'the simplest of {of_them} {_simplest(fewest)}'}.",
        )
    if best.misses:
        return selection(
            "no law holds",
            f"No law is named for extrapolation: {best.name} has the lowest error{'' if others else ', alone'}, and "
            f"{best.misses}.",
        )
    alone = "it has the lowest error" if others else "it is the only law"
    return selection(
        best.name,
        f"For extrapolation trust {best.name}: {alone} on held-out runs that reach beyond the fitted ones.",
        best.name,
    )


def _agreed(best: Compared) -> str:
    return f"of {best.fit.free} coefficients, {best.name} has both the lowest held-out error and the lowest AICc"


def _simplest(fewest: Sequence[Compared]) -> str:
    """Which laws have the fewest coefficients, and, of several, which of them is best, in words."""
    said = f"{listed([law.name for law in fewest])}, of {fewest[0].fit.free} coefficients"
    if len(fewest) == 1:
        return f"is {said}"
    if len(equal := as_low(fewest)) > 1:
        return f"are {said} each, and the held-out errors of {listed([law.name for law in equal])} are equal"
    return f"are {said} each, and of these {fewest[0].name} has the lowest held-out error"
