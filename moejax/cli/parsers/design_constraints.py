"""Define the options for constraints of a design."""

from __future__ import annotations

import argparse

from moejax.cli.number import LENGTHS, number, whole_number
from moejax.cli.parsers.options import add_active_convention, add_repeated, add_sequence_length

AT_MOST = {
    "flops": "training FLOPs",
    "params_total": "all parameters",
    "params_active": "parameters that serve one token",
    "tokens": "training tokens",
    "unique_tokens": "different tokens that exist; more tokens repeat them, if the law counts repetition",
    "inference_flops": "FLOPs of serving one token",
    "lifetime_flops": "FLOPs of training and of serving --served-tokens",
    "kv_bytes": "bytes of keys and values at --context (with --shape)",
    "chip_hours": "chips times hours",
}
"""Constraints with an option of their own."""


def add_constraint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the constraints of a design, and the assumptions for their measures."""
    group = parser.add_argument_group("at most")
    for name, meaning in AT_MOST.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=number, metavar="NUMBER", help=meaning)
    group.add_argument("--target-loss", type=number, metavar="NATS", help="loss to reach, where --minimise is not loss")
    group.add_argument(
        "--memory", type=number, metavar="BYTES", help="memory of one chip, for parameters and optimiser: 80G"
    )
    group.add_argument("--days", type=number, metavar="NUMBER", help="days of training on all --chips")
    group.add_argument(
        "--chips", type=whole_number, metavar="COUNT", help="number of chips that --memory and --days count with"
    )
    other = parser.add_argument_group("also")
    add_repeated(
        other,
        "--hold",
        "NAME=VALUE",
        "fix a variable, by its name or by its letter in the law's paper: sparsity=0.9, S=0.9",
    )
    add_repeated(other, "--range", "NAME=LOW:HIGH", "bounds of a variable")
    counted = parser.add_argument_group("counting")
    counted.add_argument(
        "--convention", default="exact", metavar="NAME", help="how a shape's FLOPs are counted (%(default)s)"
    )
    add_active_convention(counted)
    add_sequence_length(counted, "of training")
    counted.add_argument(
        "--context",
        type=LENGTHS,
        default=32768,
        metavar="TOKENS",
        help="tokens that --kv-bytes counts (%(default)s)",
    )
    counted.add_argument(
        "--memory-tokens",
        type=whole_number,
        default=0,
        metavar="TOKENS",
        help="tokens whose activations --memory counts (%(default)s)",
    )
    counted.add_argument(
        "--served-tokens", type=number, default=0.0, metavar="NUMBER", help="tokens served, for --lifetime-flops"
    )
    counted.add_argument(
        "--chip-flops", type=number, default=989e12, metavar="NUMBER", help="peak FLOP/s of one chip (%(default)g)"
    )
    counted.add_argument(
        "--mfu",
        type=number,
        default=0.4,
        metavar="SHARE",
        help="share of the peak FLOP/s assumed (%(default)s)",
    )
