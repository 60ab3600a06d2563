"""``moejax count``: parameters, FLOPs and bytes of an architecture, by part and as every paper counts."""

from __future__ import annotations

import argparse

from moejax.cli.number import whole_number
from moejax.cli.parsers.options import add_architecture_arguments
from moejax.errors import UserError

NAME = "count"
HELP = "Count parameters, FLOPs and bytes of an architecture, by part and as every paper counts."
EXAMPLE = "  moejax count --arch deepseek-v3.1 --sequence-length 4096"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_architecture_arguments(parser, required=True)
    parser.add_argument(
        "--sequence-length",
        type=whole_number,
        default=4096,
        metavar="TOKENS",
        help="tokens of a sequence, for the FLOPs of attention scores (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print machine-readable, exact numbers")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for a sequence of no tokens."""
    if arguments.sequence_length < 1:
        raise UserError(f"--sequence-length is {arguments.sequence_length}; a sequence has at least one token.")
