"""Define the options of ``moejax count``."""

from __future__ import annotations

import argparse

from moejax.cli.parsers.options import add_architecture_arguments, add_sequence_length

HELP = "Count parameters, FLOPs and bytes of an architecture, by part and as every paper counts."
EXAMPLE = "  moejax count --arch deepseek-v3.1 --sequence-length 4096"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_architecture_arguments(parser, required=True)
    add_sequence_length(parser, "tokens of a sequence, for the FLOPs of attention scores")
    parser.add_argument("--json", action="store_true", help="print machine-readable, exact numbers")
