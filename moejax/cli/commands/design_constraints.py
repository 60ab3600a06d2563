"""Read the constraints of a design from the command line."""

from __future__ import annotations

import argparse
from typing import Any

from moejax.cli.number import pairs
from moejax.cli.parsers.design_constraints import AT_MOST
from moejax.config import unknown
from moejax.design.constraint import Constraint, held
from moejax.design.measures import CostAssumptions
from moejax.errors import UserError
from moejax.laws.conventions import FLOPS
from moejax.quantities import parse


def assumptions_of(arguments: argparse.Namespace) -> CostAssumptions:
    """Return the assumptions for the measures."""
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
    """Return all given constraints.

    Raises:
      UserError: there are fewer than ``least``, or one is invalid.
    """
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
        found += held({name.replace("-", "_"): parse(text)})
    for text in arguments.range:
        name, low, high = range_of(text, "--range")
        found.append(Constraint(name=name, low=low, high=high))
    if len(found) < least:
        raise UserError("Nothing constrains the design; give a budget, such as --flops 1e24 or --chips 512 --days 30.")
    return tuple(found)


def range_of(text: str, option: str) -> tuple[str, float, float]:
    """Return the name, low and high of ``NAME=LOW:HIGH``."""
    ((name, values),) = pairs([text], option)
    low, colon, high = values.partition(":")
    if not colon:
        raise UserError(f"{option} {text!r} is not of the form NAME=LOW:HIGH.")
    found = parse(low), parse(high)
    if not found[0] < found[1]:
        raise UserError(f"{option} {text!r} goes from {low} to {high}; give the smaller end first.")
    return name.replace("-", "_"), *found
