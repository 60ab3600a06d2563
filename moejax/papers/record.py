"""Compare a printed number with its computed value.

Verdicts are derived, not stored: they follow from the printed digits, the computed number, and the rounding that a
reading assumes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from math import floor, log10
from typing import Any, SupportsFloat

from moejax.laws.law import Law
from moejax.quantities import short

Number = float | int
Value = Number | str | None

MATCH, UNDER_READING, ERROR = "match", "match under reading", "document error"
UNEXPLAINED, NOT_CHECKABLE = "unexplained", "not checkable"
VERDICTS = {
    MATCH: "the number, computed as the document describes, rounds to the printed number",
    UNDER_READING: "the number agrees under an assumption that the document does not state, or states in another place",
    ERROR: "the number does not follow from the document's own formulas and data under any assumption that was tried",
    UNEXPLAINED: "the number agrees under no assumption that was tried, and the document does not define it",
    NOT_CHECKABLE: "the document does not print the data behind the number",
}
"""Kinds of verdict, with their meanings."""

ABOUT = 0.1
"""Relative tolerance for a printed number that the document qualifies with "about"."""
RULE = (
    "One rule holds for every row. A computed number agrees with a printed number if it rounds to the printed digits: "
    "it is within half a unit of the last digit. A printed number with a power of ten is compared in significant "
    "digits. The signs ≈ and ~ do not change the rule. If the text says about, around, roughly, approximately, almost "
    "or close to, the number is marked 'about', and a computed number agrees within "
    f"{100 * ABOUT:g} %. Bounds and words must hold exactly, identities to a billionth. A number that is only implied "
    "has as many digits as the least precise number that it is computed from."
)
"""Definition of agreement, printed on the errata page and by the command."""

_SLACK = 1e-9
ROUNDINGS: dict[str, Callable[[float, float, float], bool]] = {
    "nearest": lambda computed, printed, unit: abs(computed - printed) <= (0.5 + _SLACK) * unit,
    "up": lambda computed, printed, unit: -_SLACK * unit <= printed - computed < (1 - _SLACK) * unit,
    "down": lambda computed, printed, unit: -_SLACK * unit <= computed - printed < (1 - _SLACK) * unit,
}
"""Tests whether a computed number rounds to the printed one; ``unit`` is one unit of the last printed digit."""
SAID = {">=": "at least ", "<=": "at most ", ">": "more than ", "<": "less than "}
"""Bounds in words."""
BOUNDS: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda computed, bound: computed >= bound,
    "<=": lambda computed, bound: computed <= bound,
    ">": lambda computed, bound: computed > bound,
    "<": lambda computed, bound: computed < bound,
}
"""Tests of bounds by sign; two-character signs come first."""


@dataclass(frozen=True)
class Reading:
    """An interpretation of the document, with the resulting number."""

    computed: Value
    name: str = ""
    """Assumption beyond the document's words; empty for the document's own words."""
    rounding: str = "nearest"
    """Rounding, a key of ``ROUNDINGS``."""

    def agrees(self, published: str) -> bool:
        """Return whether the computed value agrees with the printed one by ``RULE``."""
        if self.computed is None or isinstance(self.computed, str):
            return self.computed == published
        for sign, holds in BOUNDS.items():
            if published.startswith(sign):
                return holds(self.computed, float(published[len(sign) :]))
        if published.startswith("about "):
            stated = float(published.removeprefix("about "))
            return abs(self.computed - stated) <= ABOUT * abs(stated) * (1 + _SLACK)
        return ROUNDINGS[self.rounding](self.computed, float(published), last_digit(published, self.computed))


def last_digit(published: str, computed: Number) -> float:
    """Return one unit of the last printed digit. For a number with a power of ten, use the smaller of the printed and
    the computed power."""
    digits, _, power = published.partition("e")
    decimals = Decimal(digits).as_tuple().exponent
    assert isinstance(decimals, int), f"{published} is not a number"
    if not power:
        return 10.0**decimals
    own = floor(log10(abs(computed))) if computed else int(power)
    return 10.0 ** (min(own, int(power)) + decimals)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One quantity of one document."""

    paper: str
    where: str
    """Table, equation or section."""
    quantity: str
    published: str | None
    """Printed number or word; ``>7`` is a bound, ``about 7`` an approximate number. None if no number is printed."""
    readings: tuple[Reading, ...]
    """Interpretations, starting with the document's own words."""
    unit: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    """Explanation of a difference: a clause without a full stop."""
    implied: bool = False
    """True if ``published`` is only implied: by the value of a formula or the meaning of a sentence."""
    undefined: bool = False
    """True if the document does not define the number, so that a difference is not an error."""

    @property
    def printed(self) -> str:
        """``published`` in words."""
        text = self.published or "nothing"
        sign = next((sign for sign in SAID if text.startswith(sign)), "")
        return SAID.get(sign, "") + text[len(sign) :]

    @property
    def tolerance(self) -> str:
        """Tolerance for a computed number, as shown in tables."""
        text, value = self.published, self.computed
        if text is None or text[0] in "<>" or value is None or isinstance(value, str):
            return ""
        if text.startswith("about "):
            return f"±{100 * ABOUT:g} %"
        rounding = self.agreeing.rounding if self.agreeing else "nearest"
        unit = f"{last_digit(text, value):g}"
        return {"nearest": f"±{short(last_digit(text, value) / 2)}", "up": f"-{unit}", "down": f"+{unit}"}[rounding]

    @property
    def how(self) -> str:
        """Form of the published number: ``printed`` as digits, ``stated`` in words, or ``implied``."""
        digits = self.published is None or re.fullmatch(r"[-+.e\d]+", self.published)
        return "implied" if self.implied else "printed" if digits else "stated"

    @property
    def shown(self) -> str:
        """``computed`` for display, with a power of ten if the printed number has one."""
        if isinstance(self.computed, str) or self.computed is None or "e" not in (self.published or ""):
            return written(self.computed)
        digits, power = f"{self.computed:.4e}".split("e")
        return f"{digits}e{int(power)}"

    @property
    def key(self) -> str:
        """Unique key of the record."""
        return f"{self.paper} | {self.where} | {self.quantity}"

    @property
    def agreeing(self) -> Reading | None:
        """First reading that agrees, if any."""
        if self.published is None:
            return None
        return next((reading for reading in self.readings if reading.agrees(self.published)), None)

    @property
    def computed(self) -> Value:
        """Value of the reading that agrees, or of the document's own words if none agrees."""
        return (self.agreeing or self.readings[0]).computed

    @property
    def kind(self) -> str:
        """Kind of verdict, a key of ``VERDICTS``."""
        if self.published is None or all(reading.computed is None for reading in self.readings):
            return NOT_CHECKABLE
        if self.agreeing is None:
            return UNEXPLAINED if self.undefined else ERROR
        return UNDER_READING if self.agreeing.name else MATCH

    @property
    def verdict(self) -> str:
        """Kind of verdict, with the name of the reading that agrees."""
        return f"{UNDER_READING} {self.agreeing.name}" if self.agreeing and self.agreeing.name else self.kind

    @property
    def explanation(self) -> str:
        """Explanation in one sentence."""
        unit = f" {self.unit}" if self.unit else ""
        came = f"Computed {self.shown}{unit}"
        reading = self.agreeing.name if self.agreeing else ""
        said = {
            MATCH: f"{came}, {self.how} {self.printed}",
            UNDER_READING: f"{came}, {self.how} {self.printed}, reading it as {reading}",
            ERROR: f"{came} where {self.printed} is {self.how}",
            UNEXPLAINED: f"{came} where {self.printed} is {self.how}; the document does not define this number",
            NOT_CHECKABLE: "The document does not print the data behind this number"
            if self.computed is None
            else f"{came}; the document prints no number to compare it with",
        }[self.kind]
        return f"{said}{f'; {self.note}' if self.note and self.kind != MATCH else ''}."

    def as_json(self) -> dict[str, Any]:
        """Return plain values, including the verdict, keyed by name."""
        return {
            "paper": self.paper,
            "where": self.where,
            "quantity": self.quantity,
            "unit": self.unit,
            "inputs": dict(self.inputs),
            "published": self.published,
            "tolerance": self.tolerance,
            "computed": self.computed,
            "readings": [
                {
                    "reading": reading.name or "as printed",
                    "computed": reading.computed,
                    "agrees": self.published is not None and reading.agrees(self.published),
                }
                for reading in self.readings
            ],
            "reading": self.agreeing.name if self.agreeing else "",
            "verdict": self.verdict,
            "explanation": self.explanation,
        }


Records = Iterator[Record]


def written(value: Value) -> str:
    """Return a computed value for display: numbers with five digits, words unchanged."""
    if value is None or isinstance(value, str):
        return value or "nothing"
    return str(value) if isinstance(value, int) else f"{value:.5g}"


def readings(*values: Reading | Value) -> tuple[Reading, ...]:
    """Return readings; plain values become readings of the document's own words."""
    return tuple(value if isinstance(value, Reading) else Reading(value) for value in values)


def recorder(paper: str) -> Callable[..., Record]:
    """Return ``record(where, quantity, published, *values, **rest)`` for one paper."""

    def record(where: str, quantity: str, published: str | None, *values: Reading | Value, **rest: Any) -> Record:
        return Record(
            paper=paper, where=where, quantity=quantity, published=published, readings=readings(*values), **rest
        )

    return record


def constants(
    record: Callable[..., Record], where: str, law: Law, printed: Mapping[str, str], what: str = "constant"
) -> Records:
    """Yield records that compare a law's constants with the printed constants."""
    by_symbol = {f.metadata["symbol"]: getattr(law, f.name) for f in fields(law)}
    for symbol, text in printed.items():
        yield record(where, f"{what} {symbol} of the law in use here", text, by_symbol[symbol])


def holds(fact: bool) -> str:
    """Return ``holds`` or ``fails``."""
    return "holds" if fact else "fails"


def trend(values: Iterable[SupportsFloat]) -> str:
    """Return ``rises`` or ``falls`` for strictly monotonic values, ``stays`` for equal values, else ``turns``."""
    numbers = [float(value) for value in values]
    steps = [later - earlier for earlier, later in itertools.pairwise(numbers)]
    if all(step > 0 for step in steps):
        return "rises"
    if not any(steps):
        return "stays"
    return "falls" if all(step < 0 for step in steps) else "turns"


def same(one: SupportsFloat, other: SupportsFloat) -> str:
    """Return ``holds`` if two sides of an identity agree to a billionth, else ``fails``."""
    return holds(abs(float(one) / float(other) - 1) < 1e-9)
