"""Define the options of ``moejax laws``."""

from __future__ import annotations

import argparse
from pathlib import Path

from moejax.errors import UserError

HELP = "List the laws with what they read and their published constants, show one law whole, or write their pages."
EXAMPLE = """\
  moejax laws show five_factor
  moejax laws --pages docs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("words", nargs="*", metavar="show NAME", help="show one law, by its name or its paper's")
    parser.add_argument(
        "--pages",
        type=Path,
        metavar="DIR",
        help="write DIR/laws/NAME.md for every law; DIR must hold errata.md and gallery.md; older pages are replaced",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for invalid arguments."""
    words = arguments.words
    if words and not arguments.pages and (len(words) != 2 or words[0] != "show"):
        raise UserError(f"`moejax laws {' '.join(words)}` is not understood; write `moejax laws show NAME`.")
