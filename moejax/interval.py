"""The central interval of many answers to one question: of resampled fits, of drawn laws, of the optima under them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from moejax.errors import UserError
from moejax.quantities import format

DECISIVE_FACTOR = 10.0
"""An interval whose ends differ by more than this factor determines nothing."""
UNDEFINED_SHARE = 0.05
"""Nor does one for which more than this share of resamples have no answer."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A range that holds the stated share of the resampled answers."""

    low: float
    middle: float
    """Median."""
    high: float
    deviation: float
    """Standard deviation."""
    undefined: float
    """Share of resamples that had no finite answer."""

    @property
    def factor(self) -> float:
        """How many times larger one end is than the other; infinite if they differ in sign."""
        ends = sorted((abs(self.low), abs(self.high)))
        return ends[1] / ends[0] if self.low * self.high > 0 else float("inf")

    @property
    def uninformative(self) -> bool:
        """Whether the interval is so wide, or so often undefined, that the runs do not determine the answer."""
        return not (self.factor <= DECISIVE_FACTOR and self.undefined <= UNDEFINED_SHARE)

    def bounds(self, written: Callable[[float], str] = format) -> str:
        """Both ends as people write them, an open end in words, and how often there was no answer."""
        low = written(self.low) if np.isfinite(self.low) else "open below"
        high = written(self.high) if np.isfinite(self.high) else "open above"
        text = f"[{low}, {high}]"
        return f"{text}, no answer under {self.undefined:.0%} of the laws" if self.undefined else text

    def ends(self, written: Callable[[float], str] = format) -> str:
        """The same, and that it says nothing where that is so."""
        return f"{self.bounds(written)} (not determined by these runs)" if self.uninformative else self.bounds(written)

    def __str__(self) -> str:
        ends = self.ends("{:.4g}".format)
        return f"{self.middle:.4g} {ends}" if np.isfinite(self.middle) else ends


UNKNOWN = Interval(low=np.nan, middle=np.nan, high=np.nan, deviation=np.nan, undefined=1.0)
"""Where no answer is finite."""
OPEN = Interval(low=-np.inf, middle=np.nan, high=np.inf, deviation=np.nan, undefined=0.0)
"""Where the runs tell nothing of an answer."""


def interval(answers: Any, level: float = 0.9) -> Interval:
    """The central interval of resampled answers, those that are not finite left out and counted.

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
    """Standard deviation; infinite, without a warning, where resamples lie so far out that squares overflow."""
    with np.errstate(over="ignore"):
        return float(np.std(values))


def in_percent(level: float) -> str:
    """A level as it is written beside an interval: ``90%``, ``99.9%``, and 100 for none."""
    return f"{100 * level:.6g}%"


MOST_LEVEL = 0.9999
"""The largest level: how the tails of an answer fall beyond is the shape of a distribution, and not of the runs."""


def check_level(level: float) -> float:
    """The share of answers that an interval holds, if it is one.

    Raises:
      UserError: it is not above 0, or beyond what intervals are of.
    """
    if not 0 < level <= MOST_LEVEL:
        raise UserError(f"The level is {level}; give a share above 0 and at most {MOST_LEVEL}, such as 0.9.")
    return level
