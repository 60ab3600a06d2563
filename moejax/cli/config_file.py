"""Config files: a ConfigDict comes in, overrides are applied, a frozen dataclass goes on.

A config file is Python with ``get_config()``, or ``get_config(arg)`` for ``--config=FILE.py:arg``, that returns an
``ml_collections.ConfigDict``. Nothing beyond this module sees a ConfigDict.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from moejax.cli import packaged_configs
from moejax.config import build, dump, unknown
from moejax.errors import UserError
from moejax.quantities import parse
from moejax.wording import says

if TYPE_CHECKING:
    from ml_collections import ConfigDict

T = TypeVar("T")


def add_config_argument(parser: argparse.ArgumentParser, *of: str, required: bool = True) -> None:
    """Add ``--config=FILE.py[:arg]``, a file that describes a dataclass of one of these names, which are those of
    ``given_settings``; the command line collects its overrides as ``arguments.overrides``."""
    parser.set_defaults(settings_of=of)
    parser.add_argument(
        "--config", required=required, metavar="FILE.py", help="config file; --config.a.b=VALUE changes one setting"
    )


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


def file_of(config: str) -> Path:
    """The file of ``FILE.py`` or ``FILE.py:arg``: the reader's or, where there is none, moejax's own of this name.

    Raises:
      UserError: there is neither, with those that there are.
    """
    name = config.partition(":")[0]
    path = Path(name)
    if path.is_file():
        return path
    if own := packaged_configs.find(name):
        return own
    here = map(str, sorted(Path(packaged_configs.FOLDER).rglob("*.py")))
    known = dict.fromkeys([*here, *packaged_configs.names()])
    raise UserError(f"There is no config file {path}. There are {', '.join(known)}.")


def read(config: str) -> ConfigDict:
    """The ConfigDict of ``FILE.py`` or ``FILE.py:arg``."""
    from ml_collections import ConfigDict

    name, _, argument = config.partition(":")
    path = file_of(config)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
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
        found = module.get_config(*([argument] if argument else []))
    except (Exception, SystemExit) as error:
        raise UserError(f"get_config of {config} failed ({says('Python', error)}); mend it.") from error
    if not isinstance(found, ConfigDict):
        raise UserError(
            f"get_config of {name} returned a {type(found).__name__}; it must be an ml_collections.ConfigDict."
        )
    return found


def override(settings: dict[str, Any], word: str) -> None:
    """Apply ``--config.a.b=value``: the new value is read as the type of the one it replaces."""
    path, equals, text = word.removeprefix("--").partition("=")
    if not equals:
        raise UserError(f"--{path} has no value; write --{path}=VALUE.")
    *groups, last = path.split(".")[1:]
    here, where = settings, "config"
    for key in groups:
        here, where = here[_known(here, key, where)], f"{where}.{key}"
    last = _known(here, last, where)
    here[last] = _value(text, here[last], path)


def _known(group: Any, key: str, where: str) -> Any:
    if isinstance(group, list):
        # Not int(key): that fails for other scripts' digits (²) and for thousands of them.
        if key not in map(str, range(len(group))):
            raise UserError(f"{where}.{key} is not known; {where} is a list with items 0 to {len(group) - 1}.")
        return int(key)
    if not isinstance(group, dict):
        raise UserError(f"{where} is a single setting, so it has no {key}.")
    if key not in group:
        raise UserError(unknown(f"{where}.{key}", key, list(group)))
    return key


def _value(text: str, old: Any, path: str) -> Any:
    if isinstance(old, dict):
        raise UserError(f"{path} is a group of settings ({', '.join(old)}); change one of them.")
    if isinstance(old, bool):
        if text.lower() not in ("true", "false"):
            raise UserError(f"{path} is {text!r}; it must be true or false.")
        return text.lower() == "true"
    if isinstance(old, int | float):
        return _number(text, old, path)
    if isinstance(old, list | tuple):
        words = [word for word in text.strip("[]()").split(",") if word.strip()]
        # Of what kind the items of an empty list are, their look tells.
        like = old[0] if old else None
        return [_value(word.strip(), like, path) for word in words]
    if old is None:
        return None if text.lower() == "none" else _literal(text)
    return text


def _number(text: str, old: int | float, path: str) -> int | float | str:
    if text == "auto":
        return text
    kind = "a whole number" if isinstance(old, int) else "a number"
    try:
        value = parse(text)
    except ValueError:
        raise UserError(f"{path} is {text!r}; it must be {kind}.") from None
    if isinstance(old, int):
        if value != int(value):
            raise UserError(f"{path} is {text}; it must be a whole number.")
        return int(value)
    return float(value)


def _literal(text: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # What Python cannot read as a value, or only at the cost of its stack, is the text that it is.
        return text
