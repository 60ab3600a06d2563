"""Options' values: numbers as people write them, refused in a sentence, and repeated pairs ``NAME=VALUE``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from moejax import quantities, ranges
from moejax.errors import UserError
from moejax.wording import told


def number(text: str) -> float:
    """For ``add_argument(type=number)``: 30B, 1.5T, 1e22."""
    try:
        return quantities.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(told(error)) from None


def whole_number(text: str) -> int:
    """For ``add_argument(type=whole_number)``: 4096, 4.096K."""
    try:
        return quantities.parse_whole_number(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(told(error)) from None


def count(least: int = 0, most: int = 1_000_000) -> Callable[[str], int]:
    """For ``add_argument(type=count(1, 1024))``: a whole number of things that are made, so many at least and at most.

    What is only computed with (tokens, bytes) has no such limit; what a machine has to hold has.
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
    """For ``add_argument(type=resamples)``: as many as an interval can be made of, or 0 for none."""
    value = whole_number(text)
    if value and value not in ranges.RESAMPLES:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give {ranges.RESAMPLES}, or 0 for none")
    return value


def share(text: str) -> float:
    """For ``add_argument(type=share)``: a number above 0 and at most 1."""
    value = number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range; give a number above 0 and at most 1")
    return value


SEEDS = count(0, 2**31 - 1)
"""For ``add_argument("--seed", type=SEEDS)``."""
MOST_STARTS = 1_000_000
"""Points from which a search starts."""
LENGTHS = count(1, 10**12)
"""Tokens of a sequence, which is only computed with."""
WORKERS = count(1, 1_024)
"""Processes, or devices of a CPU, on this machine."""


def pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    """Names and values of ``texts``.

    Raises:
      UserError: one is of another form, or a name is given twice.
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
