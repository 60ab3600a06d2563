"""Parse option values: numbers with suffixes, within ranges, and repeated pairs ``NAME=VALUE``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from moejax import quantities, ranges
from moejax.errors import UserError
from moejax.wording import told


def number(text: str) -> float:
    """Parse a number for ``add_argument(type=number)``: 30B, 1.5T, 1e22."""
    try:
        return quantities.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(told(error)) from None


def whole_number(text: str) -> int:
    """Parse a whole number for ``add_argument(type=whole_number)``: 4096, 4.096K."""
    try:
        return quantities.parse_whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(told(error)) from None


def count(least: int = 0, most: int = 1_000_000) -> Callable[[str], int]:
    """Return a parser of counts for ``add_argument(type=count(1, 1024))``: whole numbers from ``least`` to ``most``.

    Use it for things that a machine must hold. Numbers that only enter formulas (tokens, bytes) have no such limit.
    """

    def read(text: str) -> int:
        value = whole_number(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is out of range; give a whole number from {least:,} to {most:,}"
            )
        return value

    return read


def resamples(text: str) -> int:
    """Parse a number of resamples for ``add_argument(type=resamples)``: enough for an interval, or 0 for none."""
    value = whole_number(text)
    if value and value not in ranges.RESAMPLES:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give {ranges.RESAMPLES}, or 0 for none")
    return value


def share(text: str) -> float:
    """Parse a share for ``add_argument(type=share)``: a number above 0 and at most 1."""
    value = number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give a number above 0 and at most 1")
    return value


SEEDS = count(0, 2**31 - 1)
"""Parser of seeds for ``add_argument("--seed", type=SEEDS)``."""
MOST_STARTS = 1_000_000
"""Maximum number of initial guesses of a search."""
LENGTHS = count(1, 10**12)
"""Parser of sequence lengths in tokens, which only enter formulas."""
WORKERS = count(1, 1_024)
"""Parser of numbers of processes, or of CPU devices, on this machine."""


def pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Split ``texts`` into names and values.

    Raises:
      UserError: a text has another form, or a name is given twice.
    """
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise UserError(f"{option} {text!r} has no name and value; write {option} NAME=VALUE.")
        if name.strip() in dict(found):
            raise UserError(f"{option} gives {name.strip()} twice; give it once.")
        found.append((name.strip(), value.strip()))
    return found
