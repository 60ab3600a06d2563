"""Define the options of ``moejax explore``."""

from __future__ import annotations

import argparse

from moejax.cli.out_folder import local

HELP = (
    "A page with sliders for the laws, published or your own fit: loss, frontier, optimum and practical range change "
    "together. It is one HTML file that needs no server and no network."
)
EXAMPLE = """\
moejax explore
moejax explore fit/fit.json
moejax explore runs/quickstart --export explorer.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("source", nargs="?", default="", metavar="RUNS|FIT", help="fit.json, a run table, or a folder")
    parser.add_argument(
        "--export", type=local, metavar="PAGE.html", help="write the page to this file, and open nothing"
    )
    parser.add_argument("--no-browser", action="store_true", help="write a temporary file, and open nothing")
