"""Constraints of a design at the command line."""

from __future__ import annotations

import argparse

from moejax.cli.number import number, whole_number
from moejax.cli.parsers.options import add_active_convention

AT_MOST = {
    "flops": "training FLOPs",
    "params_total": "all parameters",
    "params_active": "parameters that serve a token",
    "tokens": "training tokens",
    "unique_tokens": "different tokens there are; repeated where the law has a price for it",
    "inference_flops": "FLOPs of serving one token",
    "lifetime_flops": "FLOPs of training and of serving --served-tokens",
    "kv_bytes": "bytes of keys and values at --context (with --shape)",
    "chip_hours": "hours of one chip",
}
"""Constraints with an option of their own."""


def add_constraint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what constrains a design, and what the constraints are counted with."""
    group = parser.add_argument_group("at most")
    for name, meaning in AT_MOST.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=number, metavar="NUMBER", help=meaning)
    group.add_argument("--target-loss", type=number, metavar="NATS", help="loss to reach, for another --minimise")
    group.add_argument("--memory", type=number, metavar="BYTES", help="of one chip, for parameters and optimiser: 80G")
    group.add_argument("--days", type=number, metavar="NUMBER", help="of all --chips")
    group.add_argument("--chips", type=whole_number, metavar="COUNT", help="for --memory and --days")
    other = parser.add_argument_group("also")
    other.add_argument(
        "--hold",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="hold what is chosen, or a variable or letter of the law's paper: sparsity=0.9, S=0.9",
    )
    other.add_argument("--range", action="append", default=[], metavar="NAME=LOW:HIGH", help="keep it in a range")
    counted = parser.add_argument_group("counting")
    counted.add_argument("--convention", default="exact", metavar="NAME", help="of a shape's FLOPs (%(default)s)")
    add_active_convention(counted)
    counted.add_argument("--sequence-length", type=whole_number, default=4096, metavar="TOKENS", help="(%(default)s)")
    counted.add_argument("--context", type=whole_number, default=32768, metavar="TOKENS", help="(%(default)s)")
    counted.add_argument("--memory-tokens", type=whole_number, default=0, metavar="TOKENS", help="held at once by all")
    counted.add_argument("--served-tokens", type=number, default=0.0, metavar="NUMBER", help="in the model's life")
    counted.add_argument("--chip-flops", type=number, default=989e12, metavar="NUMBER", help="a second (%(default)g)")
    counted.add_argument("--mfu", type=float, default=0.4, metavar="SHARE", help="of them used (%(default)s)")
