"""Define the options of ``moejax sample``."""

from __future__ import annotations

import argparse

from moejax.cli.number import SEEDS, count, number
from moejax.errors import UserError

HELP = "Continue a prompt with a trained or converted model."
EXAMPLE = """\
  moejax sample runs/tiny --prompt "def main("
  moejax sample runs/tiny/checkpoints/branch-65536 --prompt "import " --samples 3
  moejax sample weights/mixtral --prompt "Sparse models" --tokens 50 --temperature 0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("model", metavar="DIR", help="a training's folder, a checkpoint in it, or a folder of weights")
    parser.add_argument("--prompt", default="", help="text to go on from (default: the start of a document)")
    parser.add_argument("--tokens", type=count(0), default=200, metavar="N", help="tokens at most (default: 200)")
    parser.add_argument("--samples", type=count(0, 10_000), default=1, metavar="N", help="continuations (default: 1)")
    parser.add_argument(
        "--temperature",
        type=number,
        default=1.0,
        metavar="T",
        help="temperature; 0 takes the likeliest token (default: 1)",
    )
    parser.add_argument(
        "--top-k",
        type=count(0, 10_000_000),
        default=0,
        metavar="K",
        help="draw from the K likeliest tokens (default: all)",
    )
    parser.add_argument(
        "--top-p",
        type=number,
        default=1.0,
        metavar="P",
        help="draw from the likeliest tokens whose probabilities sum to P (default: 1)",
    )
    parser.add_argument("--seed", type=SEEDS, default=0, help="seed of the draws (default: 0)")
    parser.add_argument("--tokenizer", metavar="NAME", help="bytes or a tokenizer.json (default: the model's own)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="type to compute in")
    parser.add_argument("--json", action="store_true", help="print prompt and continuations on stdout as JSON")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` if there is nothing to generate."""
    if arguments.tokens < 1 or arguments.samples < 1:
        raise UserError(
            f"--tokens is {arguments.tokens} and --samples {arguments.samples}; ask for at least one of each."
        )
