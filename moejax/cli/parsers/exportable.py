"""``--exportable hf``: before anything is trained, hold that ``moejax convert --to hf`` will be able to write it."""

from __future__ import annotations

import argparse


def add_exportable_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--exportable",
        metavar="hf[:FAMILY]",
        help="train only what moejax convert --to hf can write, by any family or by this one",
    )
