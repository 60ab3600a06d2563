"""Constraints of a design at the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from moejax.cli.number import number, whole_number
from moejax.cli.pairs import pairs
from moejax.errors import UserError
from moejax.quantities import parse

if TYPE_CHECKING:
    from moejax.design.measures import CostAssumptions
    from moejax.design.problem import Constraint

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


def add_active_convention(group: Any) -> None:
    """Add the one switch for what active parameters are at a total and a sparsity."""
    group.add_argument(
        "--active-convention",
        metavar="NAME",
        help="active parameters at a total and a sparsity, where only these are known: proportional (all are experts'; "
        "the default), backbone_by_active, backbone_by_total",
    )


def assumptions_of(arguments: argparse.Namespace) -> CostAssumptions:
    """What measures are taken under."""
    from moejax.config import unknown
    from moejax.design.measures import CostAssumptions
    from moejax.laws.conventions import FLOPS

    if arguments.convention not in FLOPS:
        raise UserError(unknown(f"--convention {arguments.convention}", arguments.convention, list(FLOPS)))
    names = ("convention", "sequence_length", "context", "memory_tokens", "served_tokens", "chip_flops", "mfu")
    for name in names[1:]:
        least = name in ("memory_tokens", "served_tokens")
        value = getattr(arguments, name)
        if value < 0 or (value == 0 and not least):
            raise UserError(f"--{name.replace('_', '-')} is {value:g}; give a number above 0.")
    if not arguments.mfu <= 1:
        raise UserError(f"--mfu is {arguments.mfu:g}; it is a share of the chip's peak, at most 1.")
    return CostAssumptions(**{name: getattr(arguments, name) for name in names})


def constraints_of(arguments: argparse.Namespace, *, least: int = 1) -> tuple[Constraint, ...]:
    """Every constraint that was given.

    Raises:
      UserError: fewer than ``least``, or one that cannot be read.
    """
    from moejax.design.problem import Constraint

    typed = {name: getattr(arguments, name) for name in AT_MOST}
    chips = arguments.chips
    if chips is None and (arguments.memory is not None or arguments.days is not None):
        raise UserError("--memory and --days are of chips; also give how many: --chips COUNT.")
    found: list[Any] = [Constraint(name=name, high=value) for name, value in typed.items() if value is not None]
    if arguments.target_loss is not None:
        found.append(Constraint(name="loss", high=arguments.target_loss))
    if arguments.memory is not None:
        found.append(Constraint(name="memory_bytes", high=arguments.memory * chips))
    if arguments.days is not None:
        found.append(Constraint(name="chip_hours", high=arguments.days * 24 * chips))
    for name, text in pairs(arguments.hold, "--hold"):
        found.append(Constraint(name=name.replace("-", "_"), low=parse(text), high=parse(text)))
    for text in arguments.range:
        name, low, high = range_of(text, "--range")
        found.append(Constraint(name=name, low=low, high=high))
    if len(found) < least:
        raise UserError("Nothing constrains the design; give a budget, such as --flops 1e24 or --chips 512 --days 30.")
    return tuple(found)


def range_of(text: str, option: str) -> tuple[str, float, float]:
    """Name, low and high of ``NAME=LOW:HIGH``."""
    ((name, values),) = pairs([text], option)
    low, colon, high = values.partition(":")
    if not colon:
        raise UserError(f"{option} {text!r} is not of the form NAME=LOW:HIGH.")
    found = parse(low), parse(high)
    if not found[0] < found[1]:
        raise UserError(f"{option} {text!r} goes from {low} to {high}; give the smaller end first.")
    return name.replace("-", "_"), *found
