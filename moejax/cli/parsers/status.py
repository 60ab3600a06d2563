"""Define the options of ``moejax status``."""

from __future__ import annotations

import argparse

HELP = "How a training stands, running or not, or every model of a study: from the files in its folder."
EXAMPLE = """\
  moejax status runs/tiny
  moejax status runs/tiny --layers              # the routing of every layer
  moejax status runs/tiny --verify              # every file of every checkpoint against its hash
  moejax status runs/quickstart --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("folder", metavar="DIR", help="the folder of a training or of a study")
    parser.add_argument("--layers", action="store_true", help="a table of each mixture layer's routing")
    parser.add_argument(
        "--verify", action="store_true", help="also read every checkpoint, and compare it with its hashes"
    )
    parser.add_argument("--json", action="store_true", help="print all of it on stdout as JSON")
