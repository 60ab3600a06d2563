"""Define the options of ``moejax plan``."""

from __future__ import annotations

import argparse

from moejax.cli.number import count, number
from moejax.cli.out_folder import local
from moejax.cli.parsers.options import add_config_argument
from moejax.cli.settings import TRAINING
from moejax.errors import UserError

OUTPUTS = ("plan.json", "program.txt")
COMPILED = 6
"""Default number of candidates that a search compiles."""
HELP = "Compile a training's step for a pod without having one: memory, communication, time, cost."
EXAMPLE = """\
  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology v5p:4x4x4
  moejax plan --config=configs/plans/moe_mini.py --topology v5e:16x16 --search
  moejax plan --config=configs/plans/qwen3_30b_a3b.py --topology h100:8x8 --search --price 2.5
  moejax plan --config=configs/tiny.py --topology cpu:8 --mesh expert=4,tensor=2 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    add_config_argument(parser, TRAINING)
    parser.add_argument(
        "--topology",
        required=True,
        metavar="CHIP:SHAPE",
        help="v5p:8x8x8, 2xv5p:4x4x4 for two slices, …; h100:8x8 for 8 hosts of 8 GPUs; cpu:8 for this CPU's devices",
    )
    parser.add_argument(
        "--mesh",
        metavar="AXIS=N,…",
        help="data, fsdp, expert, tensor of each slice; -1 takes what the others leave; axes not named have one device "
        "(beside a single axis, data takes what is left)",
    )
    parser.add_argument(
        "--remat",
        metavar="POLICY",
        help="what is computed again: none, dots, full, or all but what is named, as attn_out+moe_gate_up",
    )
    parser.add_argument(
        "--microbatches", type=count(1), metavar="N", help="parts of a batch that are computed one after another"
    )
    parser.add_argument(
        "--search", action="store_true", help="try meshes, remat policies and microbatches, and rank them"
    )
    parser.add_argument(
        "--compile",
        type=count(0, 1_000),
        metavar="N",
        help=f"how many of the ranked candidates of --search are compiled (default: {COMPILED})",
    )
    parser.add_argument("--price", type=number, metavar="COST", help="price of one chip for an hour, in any currency")
    parser.add_argument(
        "--out", type=local, metavar="DIR", help="write plan.json and the compiled program's text, program.txt"
    )
    parser.add_argument("--json", action="store_true", help="print the plan on stdout as JSON")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for a search that compiles nothing, or a negative price."""
    if arguments.price is not None and arguments.price < 0:
        raise UserError(f"--price is {arguments.price:g} for a chip and hour; give 0 or more.")
    if arguments.compile is not None and not arguments.search:
        raise UserError(f"--compile is {arguments.compile}, of candidates that --search ranks; give --search too.")
    if arguments.compile == 0:
        raise UserError(f"--compile is {arguments.compile}; give at least 1.")
