"""What a config file describes: a ConfigDict comes in, overrides are applied, a frozen dataclass goes on.

A config file is Python with ``get_config()``, or ``get_config(arg)`` for ``--config=FILE.py:arg``, that returns an
``ml_collections.ConfigDict``. Nothing beyond this module sees a ConfigDict.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TypeVar

from ml_collections import ConfigDict

from moejax.cli.config_file import find, override
from moejax.config import build, dump
from moejax.errors import UserError
from moejax.wording import says

T = TypeVar("T")


def load(cls: type[T], config: str, overrides: list[str]) -> T:
    """The dataclass that a config file and its overrides describe. Any setting can be overridden, also one that the
    file leaves at its default.

    Raises:
      UserError: no such file, no such key (naming the nearest), or a value of the wrong type.
    """
    settings = dump(build(cls, read(config).to_dict()))
    for word in overrides:
        override(settings, word)
    return build(cls, settings)


class _WithoutBytecode(SourceFileLoader):
    """Python's loader of a file, without a ``__pycache__`` beside it.

    Nothing is written beside a reader's files. And bytecode is told from its source's by size and whole seconds, so a
    script that writes config after config would be given one of before.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Run a reader's code so that it neither prints into a command's result, nor closes what that is printed to, nor
    moves the folder that names of files are read from."""
    said = io.StringIO()
    here = Path.cwd()
    try:
        with contextlib.redirect_stdout(said):
            yield
    finally:
        os.chdir(here)
        if not said.closed:
            sys.stderr.write(said.getvalue())


def read(config: str) -> ConfigDict:
    """The ConfigDict of ``FILE.py`` or ``FILE.py:arg``."""
    name, _, argument = config.partition(":")
    path = find(config)
    loader = _WithoutBytecode(path.stem, str(path))
    spec = importlib.util.spec_from_loader(path.stem, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with _apart():
            loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} cannot be run ({says('Python', error)}); mend the file.") from error
    if not callable(vars(module).get("get_config")):
        raise UserError(f"{name} is no config file: it has no function get_config.")
    parameters = inspect.signature(module.get_config).parameters.values()
    if argument and not parameters:
        raise UserError(f"{name} takes no argument, but :{argument} was given; leave it out.")
    if not argument and any(parameter.default is parameter.empty for parameter in parameters):
        raise UserError(f"{name} needs an argument; give it as --config={name}:ARGUMENT.")
    try:
        with _apart():
            found = module.get_config(*([argument] if argument else []))
    except (Exception, SystemExit) as error:
        remedy = "give another argument, or mend it" if argument else "mend it"
        raise UserError(f"get_config of {config} failed ({says('Python', error)}); {remedy}.") from error
    if not isinstance(found, ConfigDict):
        raise UserError(
            f"get_config of {name} returned a {type(found).__name__}; it must be an ml_collections.ConfigDict."
        )
    return found
