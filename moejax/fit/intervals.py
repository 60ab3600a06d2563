"""Ends of confidence intervals: linear for numbers of either sign, in the logarithm of the size for others, of the odds
for shares; and the ranges of runs that are not yet trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Bool, Float

from moejax.interval import check_level

Numbers = Float[np.ndarray, " answers"]


def keeps_sign(law: Any) -> dict[str, bool]:
    """Whether a law's coefficients have a sign of their own, by name; one that is declared ``any`` may be 0.

    Args:
      law: a law, or its class.
    """
    return {f.name: f.metadata["sign"] != "any" for f in dataclasses.fields(law) if not f.metadata.get("static")}


def ends(middle: Numbers, reach: Numbers, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
    """Both ends of the intervals of some numbers.

    A number that keeps its sign is spread in the logarithm of its size, in which a law is more nearly linear, so that
    its interval keeps it too. Any other is spread as it is: its interval may hold 0.

    Args:
      middle: the numbers.
      reach: standard errors times Student's t.
      one_sign: whether each of them keeps its sign.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.exp(reach / np.abs(middle))
        folded = np.sort(np.stack([middle / factor, middle * factor]), axis=0)
    linear = np.stack([middle - reach, middle + reach])
    low, high = np.where(np.asarray(one_sign) & (middle != 0), folded, linear)
    return low, high


def share_ends(middle: Numbers, reach: Numbers) -> tuple[Numbers, Numbers]:
    """Both ends of the intervals of shares, between 0 and 1: those of the odds, share over rest, in their logarithm."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        odds_ends = ends(middle / (1 - middle), reach / (1 - middle) ** 2, True)
        low, high = (1 / (1 + 1 / odds) for odds in odds_ends)
    return low, high


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far some estimated numbers may be off."""

    middle: Numbers
    errors: Numbers
    """Standard errors; NaN where there are none."""
    degrees_of_freedom: Numbers
    """Degrees of freedom of Student's t, of each number's own error."""

    def without(self, unknown: Sequence[bool]) -> Spread:
        """The same, with no error where a number is not known."""
        return dataclasses.replace(self, errors=np.where(np.asarray(unknown, bool), np.nan, self.errors))

    def ends(self, level: float, one_sign: bool | Bool[np.ndarray, " answers"]) -> tuple[Numbers, Numbers]:
        """Both ends of each number's interval.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return ends(self.middle, self._reach(level), one_sign)

    def share_ends(self, level: float) -> tuple[Numbers, Numbers]:
        """The same of shares.

        Raises:
          UserError: ``level`` is not between 0 and 1.
        """
        return share_ends(self.middle, self._reach(level))

    def _reach(self, level: float) -> Numbers:
        return scipy.special.stdtrit(self.degrees_of_freedom, (1 + check_level(level)) / 2) * self.errors


@dataclass(frozen=True, kw_only=True)
class PredictionIntervals:
    """Ranges for new runs, one entry each."""

    low: Float[np.ndarray, " designs"]
    loss: Float[np.ndarray, " designs"]
    high: Float[np.ndarray, " designs"]
    from_coefficients: float
    """Share of the variance, over all designs that have a range, that is due to the coefficients; the rest is lack of
    fit. NaN where none has one."""
    unknown: tuple[str, ...]
    """Why each has no range (``FitResult.unknown``); empty words where it has one."""
