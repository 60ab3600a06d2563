"""``moejax explore``: laws, sliders and published models in a browser."""

from __future__ import annotations

import argparse

from moejax.cli.number import whole_number

HELP = (
    "A page with sliders over the laws, published or your own fit's: loss, frontier, slices, optimum and practical "
    "range move at once. It is served on this machine alone (pip install 'moejax[explore]')."
)
EXAMPLE = """\
moejax explore
moejax explore fit/fit.json
moejax explore runs/quickstart --port 8000 --no-browser"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("source", nargs="?", default="", metavar="RUNS|FIT", help="fit.json, a run table, or a folder")
    parser.add_argument(
        "--port", type=whole_number, default=2718, metavar="NUMBER", help="0 for any free (%(default)s)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
