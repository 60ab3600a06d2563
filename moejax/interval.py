"""Compute central intervals of many answers to one question, such as the predictions of resampled fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.quantities import format
from moejax.ranges import LEVEL

DECISIVE_FACTOR = 10.0
"""Ratio of the bounds above which an interval is uninformative."""
UNDEFINED_SHARE = 0.05
"""Share of resamples without an answer above which an interval is uninformative."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An interval that contains the stated share of the resampled answers."""

    low: float
    middle: float
    """Median."""
    high: float
    deviation: float
    """Standard deviation."""
    undefined: float = 0.0
    """Share of resamples without a finite answer."""

    @property
    def factor(self) -> float:
        """Ratio of the larger to the smaller bound in absolute value; infinite if the signs differ."""
        ends = sorted((abs(self.low), abs(self.high)))
        return ends[1] / ends[0] if self.low * self.high > 0 else float("inf")

    @property
    def uninformative(self) -> bool:
        """True if the interval is so wide, or so often undefined, that the runs do not determine the answer."""
        return not (self.factor <= DECISIVE_FACTOR and self.undefined <= UNDEFINED_SHARE)

    def bounds(self, written: Callable[[float], str] = format) -> str:
        """Return both bounds as text, with words for infinite bounds, and the share of laws without an answer."""
        low = written(self.low) if np.isfinite(self.low) else "open below"
        high = written(self.high) if np.isfinite(self.high) else "open above"
        text = f"[{low}, {high}]"
        return f"{text}, no answer for {self.undefined:.0%} of the laws" if self.undefined else text

    def ends(self, written: Callable[[float], str] = format) -> str:
        """Return the text of ``bounds``, with a remark if the interval is uninformative."""
        return f"{self.bounds(written)} (not determined by these runs)" if self.uninformative else self.bounds(written)

    def __str__(self) -> str:
        ends = self.ends("{:.4g}".format)
        return f"{self.middle:.4g} {ends}" if np.isfinite(self.middle) else ends


UNKNOWN = Interval(low=np.nan, middle=np.nan, high=np.nan, deviation=np.nan, undefined=1.0)
"""Interval if no answer is finite."""
OPEN = Interval(low=-np.inf, middle=np.nan, high=np.inf, deviation=np.nan)
"""Interval if the runs do not constrain an answer."""


def interval(answers: Any, level: float = 0.9) -> Interval:
    """Return the central interval of resampled answers. Non-finite answers are excluded and counted.

    Raises:
      UserError: ``level`` is not between 0 and 1.
    """
    level = check_level(level)
    answers = np.asarray(answers, np.float64).ravel()
    finite = answers[np.isfinite(answers)]
    if not len(finite):
        return UNKNOWN
    low, middle, high = np.quantile(finite, [(1 - level) / 2, 0.5, (1 + level) / 2])
    return Interval(
        low=float(low),
        middle=float(middle),
        high=float(high),
        deviation=_deviation(finite),
        undefined=float(1 - len(finite) / len(answers)),
    )


def _deviation(values: Float[np.ndarray, " values"]) -> float:
    """Return the standard deviation; infinite, without a warning, if squares of extreme resamples overflow."""
    with np.errstate(over="ignore"):
        return float(np.std(values))


def in_percent(level: float) -> str:
    """Return a level as printed with an interval: ``90%``, ``99.9%``."""
    return f"{100 * level:.6g}%"


MOST_LEVEL = LEVEL.high
"""Maximum level. Beyond it, the bounds depend on the assumed shape of a distribution rather than on the runs."""


def check_level(level: float) -> float:
    """Return ``level``, the share of answers in an interval, if it is valid.

    Raises:
      UserError: the level is not above 0, or is above ``MOST_LEVEL``.
    """
    if not 0 < level <= MOST_LEVEL:
        raise UserError(f"The level is {level}; give a share above 0 and at most {MOST_LEVEL}, such as 0.9.")
    return level
