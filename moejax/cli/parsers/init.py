"""Define the options of ``moejax init``."""

from __future__ import annotations

import argparse

HELP = """\
Copy moejax's own configs (a tiny training, the quickstart, the studies of five papers, plans of published models) to
DIR/configs, to run and to change. A file that is there already is left as it is. A config that is not changed needs no
copy: --config=tiny and --config=studies/zhao:G are found wherever moejax is installed."""
EXAMPLE = """\
  moejax init
  moejax init mine
  moejax init mine --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("folder", nargs="?", default=".", metavar="DIR", help="where configs/ is written (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print which files were written and kept as JSON instead")
