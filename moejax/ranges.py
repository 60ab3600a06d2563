"""Declare the allowed values of a config's field in its type: ``beta1: BelowOne``.

``moejax.config`` rejects other values before any computation, with the field's path in the error. The bounds of numbers
are far beyond trained models, and within the ranges of the numbers and indices that later computations use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from moejax.wording import did_you_mean, some

Number = Any
"""An int when a model is built; a float or a traced array when a design is optimized."""


@dataclass(frozen=True)
class NumberRange:
    """Numbers from ``low`` to ``high``, where each bound may be excluded."""

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

    def advice(self, value: object) -> str:
        """Return the end of an error about a value outside the range."""
        return f"give {self}."


@dataclass(frozen=True)
class Choices:
    """Names that a field accepts."""

    names: tuple[str, ...]

    def __contains__(self, value: object) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return some([f"`{name}`" for name in self.names if name], 20)

    def advice(self, value: object) -> str:
        """Return the end of an error about an unknown name: similar known names, or all of them."""
        return did_you_mean(str(value), [name for name in self.names if name])


def one_of(names: Iterable[str]) -> Choices:
    """Return the choices ``names``, such as the keys of a registry."""
    return Choices(tuple(names))


def whole(low: int, high: int) -> NumberRange:
    """Return the range of whole numbers from ``low`` to ``high``."""
    return NumberRange(low, high, whole=True)


INT32 = 2**31 - 1
WIDEST = 2**24
"""Maximum of any dimension of a model. The product of two is exact in a float."""
MOST_LAYERS = 100_000
"""Maximum number of layers, since layer patterns are expanded to a letter per layer."""
LEAST = 1e-30
"""Minimum of an epsilon; smaller ones vanish in float32 computations."""

Size = Annotated[Number, whole(1, WIDEST)]
"""A dimension of a model."""
VocabSize = Annotated[int, whole(1, WIDEST)]
OptionalSize = Annotated[Number, whole(0, WIDEST)]
"""An optional dimension of a model; 0 if absent."""
Layers = Annotated[Number, whole(0, MOST_LAYERS)]
Groups = Annotated[int, whole(1, WIDEST)]
Tokens = Annotated[int, whole(0, 10**18)]
Length = Annotated[int, whole(0, INT32)]
"""Length of a sequence, or of a part of it, in tokens."""
Steps = Annotated[int, whole(1, INT32)]
Copies = Annotated[int, whole(0, 1_000_000)]
"""Number of objects to create or keep."""
RESAMPLES = whole(10, 100_000)
Resamples = Annotated[int, RESAMPLES]
"""Number of bootstrap resamples. With fewer, the bounds of an interval are the extreme resamples themselves."""
LEVEL = NumberRange(0, 0.9999, without_low=True)
"""Coverage of an interval."""
Seed = Annotated[int, whole(0, 2**32 - 1)]
Share = Annotated[float, NumberRange(0, 1)]
PositiveShare = Annotated[float, NumberRange(0, 1, without_low=True)]
BelowOne = Annotated[float, NumberRange(0, 1, without_high=True)]
Epsilon = Annotated[float, NumberRange(LEAST, 1)]
Scale = Annotated[float, NumberRange(0, 1e6)]
"""Rates, weights and multiples; 0 disables them."""
Positive = Annotated[float, NumberRange(0, 1e6, without_low=True)]
Multiple = Annotated[float, NumberRange(1, 1e6)]

Quantity = Annotated[float, NumberRange(0, 1e60, without_low=True)]
"""FLOPs, parameters, tokens and other quantities that formulas read."""
NotNegative = Annotated[float, NumberRange(0, 1e60)]
FormulaLength = Annotated[int, whole(1, 10**12)]
"""Sequence length in tokens, used only in formulas."""
Reach = Annotated[float, NumberRange(1, 1e60, without_low=True)]
"""Ratio of a proposed run's size or tokens to the largest in a table."""
FIGURE_WIDTHS = NumberRange(2, 20)
FigureWidth = Annotated[float, FIGURE_WIDTHS]
"""Width of a saved figure in inches."""
RunCount = Annotated[int, whole(1, 1_000)]
Level = Annotated[float, LEVEL]
