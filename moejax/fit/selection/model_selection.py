"""Choose the law to extrapolate with, by errors on the same held-out runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.special
from jaxtyping import Float

from moejax.fit.fit_result import FitResult
from moejax.fit.selection.holdout import HeldOut, pooled
from moejax.fit.selection.metrics import Metrics, by_factors
from moejax.fit.uncertainty.noise import NEGLIGIBLE
from moejax.interval import Interval, check_level
from moejax.wording import counted, listed

AS_GOOD = 1.1
"""Factor of the lowest held-out error within which errors count as equal: such differences have no practical effect."""
LITTLE_SUPPORT = 4.0
"""AICc difference from which a law has considerably less support (Burnham and Anderson 2002, Section 2.6)."""
NO_SUPPORT = 10.0
"""AICc difference from which a law has essentially no support (ibid.), so that it no longer counts in a tie."""
LEAST_REACH = 2.0
"""Minimum extrapolation factor of the largest held-out run before a law is recommended for extrapolation."""
TABLE_ROUNDING = 0.01
"""Relative rounding of sizes in tables, by which a factor may be below ``LEAST_REACH``."""
FAR_BEYOND_NOISE = 10.0
"""Ratio of held-out error to the fitted runs' scatter above which the law's form is rejected."""
WITHIN_NOISE = 2.0
"""Ratio of held-out error to the fitted runs' scatter below which the error may be noise, even if R² is negative."""
RUNS_PER_COEFFICIENT = 2
"""Minimum number of fitted runs per coefficient. With fewer, the law is too flexible for meaningful held-out errors."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A fitted law with its held-out errors."""

    name: str
    fit: FitResult
    held_out: tuple[HeldOut, ...]

    @property
    def errors(self) -> Metrics:
        """Errors over the held-out runs of all splits."""
        return pooled(self.held_out)

    @property
    def rmse(self) -> float:
        """RMSE over the held-out runs of all splits; NaN or infinite if the law is NaN or infinite for some run."""
        return self.errors.rmse_of(self.fit.output)

    @property
    def arbitrary(self) -> str:
        """Reason why a held-out error is arbitrary; empty if the fitted runs determine all held-out predictions."""
        open_ends = (
            f"its error on {split.name} is arbitrary: {split.left_open}" for split in self.held_out if split.left_open
        )
        return next(open_ends, "")

    @property
    def missed_by(self) -> Float[np.ndarray, " runs"]:
        """Error on each held-out run; logarithmic if ``by_factors`` is true for the output."""
        predicted = np.concatenate([split.predicted for split in self.held_out])
        measured = np.concatenate([split.runs.loss for split in self.held_out])
        with np.errstate(divide="ignore", invalid="ignore"):
            # A value that is not positive has no logarithm; the error is then NaN or infinite.
            return np.log(predicted / measured) if by_factors(self.fit.output) else predicted - measured

    @property
    def misses(self) -> str:
        """Reason why the held-out errors are too large for extrapolation; empty if they are small enough."""
        errors = self.errors
        scatter = max(max(split.fit.noise for split in self.held_out), NEGLIGIBLE)
        times = errors.rmse_log / scatter
        if times > FAR_BEYOND_NOISE:
            return f"its held-out errors are {times:.3g} times the scatter of the fitted runs"
        if errors.r_squared < 0 and times > WITHIN_NOISE:
            return f"it predicts the held-out runs worse than their mean does (R² {errors.r_squared:.3g})"
        return ""

    @property
    def undetermined(self) -> str:
        """Reason why these runs do not determine the law; empty if they do."""
        if self.fit.unidentified or self.fit.unidentified_directions:
            count = len(self.fit.unidentified) + len(self.fit.unidentified_directions)
            return f"the data do not determine {counted(count, 'coefficient')} or combinations of them"
        if self.arbitrary:
            return self.arbitrary
        fitted, free = min(split.fit.metrics.runs for split in self.held_out), self.fit.free
        if fitted < RUNS_PER_COEFFICIENT * free:
            return f"{fitted} fitted runs are fewer than {RUNS_PER_COEFFICIENT} per coefficient (it has {free})"
        return ""


def as_low(laws: Sequence[Compared]) -> list[Compared]:
    """Return the laws whose held-out error equals the best law's to printed precision; ``laws`` is sorted by error."""
    ranked = [law for law in laws if bool(law.arbitrary) == bool(laws[0].arbitrary)]
    return [law for law in ranked if f"{law.rmse:.5f}" == f"{laws[0].rmse:.5f}"]


@dataclass(frozen=True, kw_only=True)
class ModelSelection:
    """Outcome of a comparison of several laws by held-out errors."""

    best: str
    """Law with the lowest error among the laws whose held-out predictions the fitted runs determine."""
    tied: tuple[str, ...]
    """Laws whose held-out errors are as low as the best law's."""
    contenders: tuple[str, ...]
    """Laws among ``best`` and ``tied`` that the runs determine and that AICc does not reject. A decision should hold
    under each of them."""
    preferred: str
    """Law to continue with.

    If the law with the lowest held-out error also has the lowest AICc on all runs, it is this law. If not, it is the
    law with the fewest coefficients among ``best`` and ``tied``; laws that the runs do not determine are excluded if
    the runs determine another one, and so are laws with a much higher AICc. Ties are broken by the held-out error.
    """
    trusted: str | None
    """Law to extrapolate with; None if these runs do not decide."""
    title: str
    """Short outcome: the name of a law, a tie, or the reason for no decision."""
    reasons: tuple[str, ...]
    """Sentences with the outcome and its reasons."""

    @property
    def sentence(self) -> str:
        """The reasons as one text."""
        return " ".join(self.reasons)


def by_error(laws: Sequence[Compared]) -> list[Compared]:
    """Return the laws sorted by held-out RMSE, then the laws with arbitrary errors, and last the laws that are NaN or
    infinite for some held-out run."""

    def order(law: Compared) -> tuple[bool, bool, float]:
        finite = bool(np.isfinite(law.rmse))
        return not finite, bool(law.arbitrary), law.rmse if finite else 0.0

    return sorted(laws, key=order)


def behind(law: Compared, best: Compared, level: float = 0.9) -> Interval:
    """Return the excess of a law's held-out RMSE over the best law's, in ``unit_of_errors``, with its interval.

    The interval is a jackknife over groups of held-out runs, with the same group omitted for both laws. Its Student's
    t has one degree of freedom less than there are groups, so it is valid for few groups too. The laws are not
    refitted, so the interval describes these two fits. With a single group both bounds are NaN.
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
        return Interval(low=np.nan, middle=middle, high=np.nan, deviation=np.nan)
    without = np.array([difference(np.where(group == one, 0.0, weight)) for one in present])
    deviation = float(np.sqrt((len(present) - 1) * np.mean((without - without.mean()) ** 2)))
    reach = float(scipy.special.stdtrit(len(present) - 1, (1 + check_level(level)) / 2)) * deviation
    return Interval(low=middle - reach, middle=middle, high=middle + reach, deviation=deviation)


def choose(laws: Sequence[Compared], reach: Mapping[str, float]) -> ModelSelection:
    """Choose the law to extrapolate with, or the law to interpolate with if no held-out runs test extrapolation.

    A law is recommended if all of these hold:

    - Every other law has a higher held-out error, by more than the uncertainty from these groups and by more than 10 %;
      or the runs do not determine it; or its AICc on all runs is more than 10 above that of a law with an equally low
      error, and the held-out runs are of several groups.
    - Its held-out error is at most ten times the scatter of the fitted runs, and less than the error of the held-out
      runs' mean.
    - The runs determine its coefficients.
    - Most held-out runs are larger than all fitted runs, and some are at least twice as large.

    If one of these does not hold, the result is a tie of laws that the runs do not distinguish, or no law. A law that
    is NaN or infinite for a held-out run is excluded and reported. A law with arbitrary held-out errors is excluded if
    another law has none.

    Args:
      laws: laws fitted to the same runs and tested on the same held-out runs.
      reach: result of ``reach_of``.
    """
    best, *others = by_error(laws)
    silent = [law.name for law in laws if not np.isfinite(law.rmse)]
    others = [law for law in others if law.name not in silent and (best.arbitrary or not law.arbitrary)]
    tied = [law for law in others if not behind(law, best).low > 0 or law.rmse <= AS_GOOD * best.rmse]
    close = [best, *tied]
    determined = [law for law in close if not law.undetermined] or close
    # All runs together may distinguish laws that the few held-out runs do not distinguish.
    likeliest = min(determined, key=lambda law: law.fit.aicc)
    unlikely = [law for law in determined if law.fit.aicc > likeliest.fit.aicc + LITTLE_SUPPORT]
    separable = len(np.unique(np.concatenate([split.runs.group for split in best.held_out]))) > 1
    rejected = [law for law in unlikely if separable and law.fit.aicc > likeliest.fit.aicc + NO_SUPPORT]
    contenders = [law for law in determined if law not in rejected]
    simplest = [law for law in determined if law not in unlikely]
    fewest = [law for law in simplest if law.fit.free == min(law.fit.free for law in simplest)]
    rivals = [law for law in determined if law is not best]
    agreed = bool(rivals) and best in determined and all(best.fit.aicc < law.fit.aicc for law in rivals)
    # The laws are sorted by their held-out error.
    preferred = best if agreed else fewest[0]

    def selection(title: str, *reasons: str, trusted: str | None = None) -> ModelSelection:
        if silent:
            are = "is" if len(silent) == 1 else "are"
            reasons += (f"{listed(silent)} {are} NaN or infinite for some held-out run, and cannot be compared.",)
        return ModelSelection(
            best=best.name,
            tied=tuple(law.name for law in tied),
            contenders=tuple(law.name for law in contenders),
            preferred=preferred.name,
            trusted=trusted,
            title=title,
            reasons=reasons,
        )

    if best.name in silent:
        return selection(
            "not finite",
            "No law is recommended for extrapolation: each is NaN or infinite for some held-out run. Check the sizes "
            "of the held-out runs, or hold out others.",
        )

    size, times = max(reach.items(), key=lambda one: one[1], default=("", 0.0))
    if reach and times < (1 - TABLE_ROUNDING) * LEAST_REACH:
        return selection(
            "not tested",
            f"No law is recommended for extrapolation: the held-out runs exceed the fitted sizes by a factor of "
            f"{times:.3g} in {size}, but a test needs a factor of at least {LEAST_REACH:g}; hold out more of the "
            f"largest runs, or train larger models.",
        )
    use = "for extrapolation" if reach else "within the sizes of the runs"
    without = _undetermined(close)
    excluded = [f"The runs do not determine some of the laws ({without})."] if without else []
    if unlikely:
        more = min(law.fit.aicc - likeliest.fit.aicc for law in unlikely)
        excluded.append(
            f"All runs together are evidence against {listed(law.name for law in unlikely)} (AICc higher than "
            f"{likeliest.name}'s by {more:.3g}{' and more' * (len(unlikely) > 1)})."
        )
    if all(law.undetermined for law in close):
        return selection(
            "undetermined",
            f"No law is recommended {use}, because the runs do not determine the laws with the lowest error "
            f"({without}).",
            *excluded[1:],
        )
    if len(contenders) > 1:
        tie = (
            f"A tie: these held-out runs do not distinguish {contenders[0].name} from "
            f"{listed(law.name for law in contenders[1:])} ({AS_LOW}), so no law is recommended {use}."
        )
        if agreed:
            why = (
                f"Of these laws, {best.name} has both the lowest held-out error and the lowest AICc, with "
                f"{best.fit.free} coefficients."
            )
        else:
            others_or_all = "Of these laws" if len(simplest) == len(close) else "Of the other laws"
            why = f"{others_or_all}, {_simplest(fewest)}{_likeliest(preferred, close)}."
        return selection(f"a tie of {len(contenders)} laws", tie, *excluded, why)
    (law,) = contenders
    if len(close) > 1:
        others_as_low = listed(one.name for one in close if one is not law)
        excluded.insert(0, f"Laws with equally low errors that do not count: {others_as_low}.")
    if law.misses:
        return selection(
            "no law holds",
            f"No law is recommended {use}: {law.name} {_why(close, others)}, but {law.misses}.",
            *excluded,
        )
    if not reach:
        why = f"it {_why(close, others)} on held-out runs"
        return selection("not tested", f"Within the sizes of the runs, use {law.name}: {why}.", *excluded)
    why = f"it {_why(close, others)} on held-out runs that reach beyond the fitted runs"
    return selection(law.name, f"For extrapolation, trust {law.name}: {why}.", *excluded, trusted=law.name)


AS_LOW = f"the 90 % interval of the difference in RMSE contains 0, or the difference is below {AS_GOOD - 1:.0%}"
"""Condition under which held-out errors count as equal."""


def _why(close: Sequence[Compared], others: Sequence[Compared]) -> str:
    if not others:
        return "is the only law"
    if len(close) == 1:
        return "has the lowest error"
    return "has one of the lowest errors"


def _undetermined(laws: Sequence[Compared]) -> str:
    """Return the laws that the runs do not determine, by reason."""
    by_reason: dict[str, list[str]] = {}
    for law in laws:
        if law.undetermined:
            by_reason.setdefault(law.undetermined, []).append(law.name)
    return "; ".join(f"{listed(names)}: {reason}" for reason, names in by_reason.items())


def _likeliest(preferred: Compared, close: Sequence[Compared]) -> str:
    """Return a clause if the preferred law, but not the law with the lowest error, has the lowest AICc of a tie."""
    others = [law for law in close if law is not preferred]
    lowest = preferred is not close[0] and all(preferred.fit.aicc < law.fit.aicc for law in others)
    return f"; {preferred.name} also has the lowest AICc" if lowest else ""


def _simplest(fewest: Sequence[Compared]) -> str:
    """Return a clause that names the laws with the fewest coefficients, and the best of them."""
    names, count = listed([law.name for law in fewest]), fewest[0].fit.free
    if len(fewest) == 1:
        return f"{names} is the simplest, with {count} coefficients"
    said = f"{names} are the simplest, with {count} coefficients each"
    if len(equal := as_low(fewest)) > 1:
        return f"{said}, and the held-out errors of {listed([law.name for law in equal])} are equal"
    return f"{said}; {fewest[0].name} has the lowest held-out error of them"
