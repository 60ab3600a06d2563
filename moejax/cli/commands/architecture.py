"""An architecture given at the command line: a published model's name, or a config file."""

from __future__ import annotations

import argparse

from moejax.architecture import Architecture
from moejax.cli.config_file import override
from moejax.config import build, dump
from moejax.errors import UserError
from moejax.laws.catalogue import find
from moejax.say import say


def load_architecture(arguments: argparse.Namespace) -> tuple[str, Architecture] | None:
    """The name and the architecture that were given, checked; None if none was.

    ``arguments.overrides`` are the words ``--config.a.b=value``, as the dispatcher sets them.

    Raises:
      UserError: an unknown model, or a config file that cannot be read or describes no model.
    """
    if arguments.arch is not None:
        return arguments.arch, find(arguments.arch).architecture
    if arguments.config is not None:
        return arguments.config, _from_config(arguments.config, arguments.overrides)
    return None


def _from_config(config: str, overrides: list[str]) -> Architecture:
    # A published model needs no ConfigDict, and `moejax predict` answers at once.
    from moejax.cli.commands.config import read

    settings = read(config).to_dict()
    if "architecture" not in settings:
        raise UserError(f"{config} has no `architecture`; it has {', '.join(settings)}.")
    where = "config.architecture"
    settings["architecture"] = dump(build(Architecture, settings["architecture"], where))
    for word in overrides:
        override(settings, word)
    architecture = build(Architecture, settings["architecture"], where)
    architecture.check()
    if fault := architecture.fault_in_training:
        say(f"! {config} cannot be trained: {fault}")
    return architecture
