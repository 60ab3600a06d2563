"""Load an architecture given at the command line, by a published model's name or a config file."""

from __future__ import annotations

import argparse

from moejax.architecture import Architecture
from moejax.cli.config_file import override
from moejax.config import build, dump
from moejax.errors import UserError
from moejax.laws.catalogue import find
from moejax.say import say


def load_architecture(arguments: argparse.Namespace) -> tuple[str, Architecture] | None:
    """Return the name and the validated architecture given at the command line; None if none was given.

    ``arguments.overrides`` are the overrides ``--config.a.b=value``.

    Raises:
      UserError: the model is unknown, or the config file cannot be read or describes no model.
    """
    if arguments.arch is not None:
        return arguments.arch, find(arguments.arch).architecture
    if arguments.config is not None:
        return arguments.config, _from_config(arguments.config, arguments.overrides)
    return None


def _from_config(config: str, overrides: list[str]) -> Architecture:
    # A published model needs no ConfigDict, so `moejax predict` starts faster without this import.
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
