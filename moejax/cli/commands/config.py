"""Load config files: read a ConfigDict, apply overrides, and build a frozen dataclass.

A config file is Python with ``get_config()``, or ``get_config(arg)`` for ``--config=FILE.py:arg``, which returns an
``ml_collections.ConfigDict``. Only this module uses ConfigDicts.
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
    """Return the dataclass that a config file and its overrides describe. Settings with defaults can be overridden too.

    Raises:
      UserError: the file or a key does not exist (with the nearest key), or a value has the wrong type.
    """
    settings = dump(build(cls, read(config).to_dict()))
    for word in overrides:
        override(settings, word)
    return build(cls, settings)


class _WithoutBytecode(SourceFileLoader):
    """A loader of Python files that writes no ``__pycache__``.

    It leaves the user's folders unchanged. Python also validates bytecode only by size and whole seconds, so a script
    that writes one config after another could load an older one.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Run user code without letting it print into a command's result, close stdout, or change the working directory."""
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
    """Return the ConfigDict of ``FILE.py`` or ``FILE.py:arg``."""
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
