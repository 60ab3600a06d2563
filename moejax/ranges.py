"""The range of every number that a config may hold, as the type of its field: ``beta1: BelowOne``.

``moejax.config`` refuses what lies outside, by the field's path, before anything is computed with it. Bounds are far
beyond what is trained, and within what int32 indices and float32 numbers hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

Number = Any
"""An int when a model is built; a float or a traced array when a design is optimised."""


@dataclass(frozen=True)
class NumberRange:
    """Numbers from ``low`` to ``high``, either of which may be left out."""

    low: int | float
    high: int | float
    without_low: bool = False
    without_high: bool = False
    whole: bool = False

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        above = self.low < value if self.without_low else self.low <= value
        return above and (value < self.high if self.without_high else value <= self.high)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        low, high = (f"{bound:,}" if self.whole else f"{bound:g}" for bound in (self.low, self.high))
        if not (self.without_low or self.without_high):
            return f"{kind} from {low} to {high}"
        return f"{kind} {'above' if self.without_low else 'of at least'} {low} and " + (
            f"below {high}" if self.without_high else f"at most {high}"
        )


def whole(low: int, high: int) -> NumberRange:
    """Whole numbers from ``low`` to ``high``."""
    return NumberRange(low, high, whole=True)


INT32 = 2**31 - 1
WIDEST = 2**24
"""Of any dimension of a model: two of them are counted exactly in a float."""
MOST_LAYERS = 100_000
"""Patterns of layers are written out, a letter for each."""
LEAST = 1e-30
"""Epsilons below it are 0 where float32 computes with them."""

Size = Annotated[Number, whole(1, WIDEST)]
"""Of a dimension of a model."""
OptionalSize = Annotated[Number, whole(0, WIDEST)]
"""Of one that a model need not have."""
Layers = Annotated[Number, whole(0, MOST_LAYERS)]
Groups = Annotated[int, whole(1, WIDEST)]
Tokens = Annotated[int, whole(0, 10**18)]
Length = Annotated[int, whole(0, INT32)]
"""Tokens of a sequence, or of a part of one."""
Steps = Annotated[int, whole(1, INT32)]
Copies = Annotated[int, whole(0, 1_000_000)]
"""Things that are made or kept."""
RESAMPLES = whole(10, 100_000)
"""Of a bootstrap: the ends of an interval of fewer are the resamples themselves."""
Seed = Annotated[int, whole(0, 2**32 - 1)]
Share = Annotated[float, NumberRange(0, 1)]
PositiveShare = Annotated[float, NumberRange(0, 1, without_low=True)]
BelowOne = Annotated[float, NumberRange(0, 1, without_high=True)]
Epsilon = Annotated[float, NumberRange(LEAST, 1)]
Scale = Annotated[float, NumberRange(0, 1e6)]
"""Rates, weights and multiples, of which 0 is none."""
Positive = Annotated[float, NumberRange(0, 1e6, without_low=True)]
Multiple = Annotated[float, NumberRange(1, 1e6)]
