"""Define the options of ``moejax convert``."""

from __future__ import annotations

import argparse

from moejax.cli.number import whole_number
from moejax.cli.out_folder import local
from moejax.errors import UserError
from moejax.folder import check_new_folder

HELP = "Convert a Hugging Face checkpoint to moejax's weights, or a moejax model to a Hugging Face checkpoint."
EXAMPLE = """\
  moejax convert --from hf Mixtral-8x7B-v0.1 --out weights/mixtral
  moejax convert --to hf weights/mixtral --dtype bfloat16 --out mixtral-hf
  moejax convert --to hf runs/mine --out mine-hf                               # the longest budget of a training
  moejax convert --to hf runs/mine/checkpoints/branch-65536 --out mine-hf-65536
  moejax convert --to weights runs/mine --out weights/mine                     # for load_weights in Python"""
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    direction = parser.add_mutually_exclusive_group(required=True)
    direction.add_argument("--from", dest="source", nargs=2, metavar=("hf", "PATH"), help="a checkpoint folder to read")
    direction.add_argument(
        "--to",
        dest="target",
        nargs=2,
        metavar=("hf|weights", "PATH"),
        help="what to write, and a weights folder, a training's folder or a checkpoint in it to read",
    )
    parser.add_argument(
        "--out", type=local, required=True, metavar="DIR", help="new folder, which appears when it is whole"
    )
    parser.add_argument(
        "--ema", action="store_true", help="of a training with recipe.ema_decay: the moving average of its parameters"
    )
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights (default: as they are stored)")
    parser.add_argument("--family", metavar="NAME", help="with --to hf: as mixtral (default: one that fits)")
    parser.add_argument(
        "--shard-bytes",
        type=whole_number,
        default=5_000_000_000,
        metavar="N",
        help="with --to hf: size of a file at most, where tensors allow (default: 5B)",
    )
    parser.add_argument("--json", action="store_true", help="print what was done on stdout as JSON")


def check(arguments: argparse.Namespace) -> None:
    """Raise ``UserError`` for options that exclude each other, or if the new folder cannot be created."""
    kind, _ = arguments.source or arguments.target
    known = ("hf",) if arguments.source else ("hf", "weights")
    option = "--from" if arguments.source else "--to"
    if kind not in known:
        raise UserError(f"{option} {kind} is not known; write {option} {' or '.join(known)}, and a PATH.")
    if arguments.shard_bytes < 1:
        raise UserError(f"--shard-bytes is {arguments.shard_bytes}; give a number of bytes above 0.")
    if kind == "weights" and (arguments.dtype or arguments.family):
        raise UserError("--to weights keeps the type of the training; leave --dtype and --family to --to hf.")
    if arguments.source and arguments.family:
        raise UserError("--family is for --to hf; with --from hf the family is that of config.json.")
    if arguments.source and arguments.ema:
        raise UserError("--ema is of a training, for --to hf and --to weights; leave it out with --from hf.")
    check_new_folder(arguments.out)
