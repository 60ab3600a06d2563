"""An architecture given at the command line: a published model's name, or a config file."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from moejax.cli.given_settings import ARCHITECTURE
from moejax.errors import UserError

if TYPE_CHECKING:
    from moejax.architecture import Architecture


def add_arguments(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """``--arch`` and ``--config``, of which at most one may be given."""
    parser.set_defaults(settings_of=(ARCHITECTURE,))
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--arch", metavar="NAME", help="a published model, as deepseek-v3.1")
    group.add_argument("--config", metavar="FILE.py[:arg]", help="a config file with an `architecture`")


def given(arguments: argparse.Namespace) -> tuple[str, Architecture] | None:
    """The name and the architecture that were given, checked; None if none was.

    ``arguments.overrides`` are the words ``--config.a.b=value``, as the dispatcher sets them.

    Raises:
      UserError: an unknown model, or a config file that cannot be read or describes no model.
    """
    if arguments.arch is not None:
        from moejax.laws.catalogue import find

        return arguments.arch, find(arguments.arch).architecture
    if arguments.config is not None:
        return arguments.config, _from_config(arguments.config, arguments.overrides)
    return None


def _from_config(config: str, overrides: list[str]) -> Architecture:
    from moejax.architecture import Architecture
    from moejax.cli.config_file import override, read
    from moejax.config import build, dump

    settings = read(config).to_dict()
    if "architecture" not in settings:
        raise UserError(f"{config} has no `architecture`; it has {', '.join(settings)}.")
    where = "config.architecture"
    settings["architecture"] = dump(build(Architecture, settings["architecture"], where))
    for word in overrides:
        override(settings, word)
    architecture = build(Architecture, settings["architecture"], where)
    architecture.check()
    return architecture
