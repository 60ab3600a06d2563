"""An architecture given at the command line: a published model's name, or a config file."""

from __future__ import annotations

import argparse

from moejax.cli.given_settings import ARCHITECTURE


def add_architecture_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """``--arch`` and ``--config``, of which at most one may be given."""
    parser.set_defaults(settings_of=(ARCHITECTURE,))
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--arch", metavar="NAME", help="a published model, as deepseek-v3.1")
    group.add_argument("--config", metavar="FILE.py[:arg]", help="a config file with an `architecture`")
