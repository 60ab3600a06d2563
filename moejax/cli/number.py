"""Numbers as options' values: written as people write them, refused in a sentence."""

from __future__ import annotations

import argparse

from moejax import quantities


def number(text: str) -> float:
    """For ``add_argument(type=number)``: 30B, 1.5T, 1e22."""
    try:
        return quantities.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def whole_number(text: str) -> int:
    """For ``add_argument(type=whole_number)``: 4096, 4.096K."""
    try:
        return quantities.whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
