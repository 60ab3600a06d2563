"""Define the options of ``moejax reproduce``."""

from __future__ import annotations

import argparse

from moejax.cli.parsers.options import add_active_convention

HELP = (
    "Recompute every computable number of five documents on Mixture-of-Experts scaling and hold it to what is printed. "
    "Exit status 1 if a verdict is not the one on record."
)
EXAMPLE = """\
  moejax reproduce
  moejax reproduce --paper zhao --json zhao.json
  moejax reproduce --errata errata.md"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("--paper", metavar="NAME", help="one of zhao, abnar, chapter_002, tian, li")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write every record; on stdout, in place of tables, if bare",
    )
    parser.add_argument("--errata", metavar="FILE", help="write what does not follow, for the authors (Markdown)")
    parser.add_argument("--verdicts", metavar="FILE", help="hold to the verdicts in this file, not to those on record")
    add_active_convention(parser)
    parser.add_argument("--record", metavar="FILE", help="write the verdicts found, as --verdicts reads them")
