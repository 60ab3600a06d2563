"""Define options that several commands share: config file, architecture, counting convention."""

from __future__ import annotations

import argparse
from typing import Any

from moejax.cli.number import LENGTHS, number
from moejax.cli.settings import ARCHITECTURE
from moejax.errors import UserError


def add_config_argument(parser: argparse.ArgumentParser, *of: str, required: bool = True) -> None:
    """Add ``--config=FILE.py[:arg]``, a file that describes a dataclass with one of these names of
    ``moejax.cli.settings``.

    The command line collects its overrides as ``arguments.overrides``.
    """
    parser.set_defaults(described=of)
    parser.add_argument(
        "--config", required=required, metavar="FILE.py", help="config file; --config.a.b=VALUE changes one setting"
    )


def check_config_or_resume(arguments: argparse.Namespace, nothing_named: str) -> None:
    """Raise ``UserError`` if neither a config nor a folder to resume is given."""
    if arguments.config or (arguments.resume and arguments.out):
        return
    if arguments.out:
        raise UserError(
            f"--out {arguments.out} is given without --config; add --config=FILE.py to start there, or --resume to go "
            f"on with what is there."
        )
    raise UserError(f"{nothing_named} was named; give --config=FILE.py, or --resume --out=DIR to go on with one.")


def add_architecture_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add ``--arch`` and ``--config``, which exclude each other."""
    parser.set_defaults(described=(ARCHITECTURE,))
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--arch", metavar="NAME", help="a published model, as deepseek-v3.1")
    group.add_argument("--config", metavar="FILE.py[:arg]", help="a config file with an `architecture`")


def add_exportable_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--exportable``."""
    parser.add_argument(
        "--exportable",
        metavar="hf[:FAMILY]",
        help="refuse, before training, an architecture that moejax convert --to hf cannot write (in any family, or in "
        "FAMILY)",
    )


def add_repeated(group: Any, name: str, metavar: str, meaning: str) -> None:
    """Add an option that may be given several times; its default is an empty list."""
    group.add_argument(name, action="append", default=[], metavar=metavar, help=meaning)


def add_level(group: Any, what: str) -> None:
    """Add ``--level``, the coverage of intervals."""
    said = f"coverage of {what} (%(default)s)"
    group.add_argument("--level", type=number, default=0.9, metavar="SHARE", help=said)


def add_active_convention(group: Any) -> None:
    """Add the option for the number of active parameters at a total and a sparsity."""
    group.add_argument(
        "--active-convention",
        metavar="NAME",
        help="active parameters at a total and a sparsity, where only these are known: proportional (all are experts'; "
        "the default), backbone_by_active, backbone_by_total",
    )


def add_sequence_length(group: Any, meaning: str, default: int | None = 4096) -> None:
    """Add ``--sequence-length``, in tokens, at least one."""
    said = meaning if default is None else f"{meaning} (%(default)s)"
    group.add_argument("--sequence-length", type=LENGTHS, default=default, metavar="TOKENS", help=said)
