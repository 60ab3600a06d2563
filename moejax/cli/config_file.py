"""Load config files: find and run a file, apply overrides ``--config.a.b=VALUE``, and build a frozen dataclass.

A config file is Python with ``get_config()``, or ``get_config(arg)`` for ``--config=FILE.py:arg``, which returns an
``ml_collections.ConfigDict``. Only this module uses ConfigDicts.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import io
import os
import sys
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import moejax
from moejax.config import build, dump, unknown
from moejax.errors import UserError
from moejax.quantities import parse
from moejax.say import say
from moejax.wording import says

if TYPE_CHECKING:
    from moejax.architecture import Architecture

T = TypeVar("T")

FOLDER = "configs"
"""Name of the folder of configs in the working directory, in a checkout and in the installed package."""


def find(config: str) -> Path:
    """Return the path of ``FILE.py`` or ``FILE.py:arg``: the user's file, or else moejax's own config of this name.

    Raises:
      UserError: neither file exists; the message lists the existing configs.
    """
    name = config.partition(":")[0]
    path = Path(name)
    if path.is_file():
        return path
    if own := find_packaged(name):
        return own
    here = map(str, (*filter(_is_config, sorted(Path().glob("*.py"))), *sorted(Path(FOLDER).rglob("*.py"))))
    known = dict.fromkeys([*here, *(f"{FOLDER}/{own}" for own in packaged_files())])
    raise UserError(f"There is no config file {name or repr(name)}; existing files are {', '.join(known)}.")


def _is_config(path: Path) -> bool:
    return path.is_file() and b"def get_config(" in path.read_bytes()


def packaged_folder() -> Path:
    """Return the folder of moejax's own configs: in the installed package, or next to it in a checkout."""
    package = Path(moejax.__file__).parent
    return next((path for path in (package / FOLDER, package.parent / FOLDER) if path.is_dir()), package / FOLDER)


def packaged_files() -> list[PurePosixPath]:
    """Return the paths of moejax's own configs, relative to ``packaged_folder()``."""
    here = packaged_folder()
    return sorted(PurePosixPath(path.relative_to(here).as_posix()) for path in here.rglob("*.py"))


def find_packaged(name: str) -> Path | None:
    """Return the path of one of moejax's own configs by name (``configs/studies/zhao.py``, ``studies/zhao`` or
    ``zhao``), or None.
    """
    asked = PurePosixPath(name)
    asked = asked.with_suffix("") if asked.suffix == ".py" else asked
    for path in packaged_files():
        if asked in (FOLDER / path.with_suffix(""), path.with_suffix(""), PurePosixPath(path.stem)):
            return packaged_folder() / path
    return None


def override(settings: dict[str, Any], word: str) -> None:
    """Apply ``--config.a.b=value``. The new value must have the type of the old value."""
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
        # int(key) would fail for digits of other scripts (²) and for thousands of digits.
        if key not in map(str, range(len(group))):
            raise UserError(
                f"{where}.{key} does not exist; give an item of the list {where}, from 0 to {len(group) - 1}."
            )
        return int(key)
    if not isinstance(group, dict):
        raise UserError(f"{where} is a single setting, so it has no {key}; write --{where}=VALUE.")
    if key not in group and not group:
        raise UserError(f"{where} is an empty group of settings; write {where}={{'{key}': VALUE}}.")
    if key not in group:
        raise UserError(unknown(f"{where}.{key}", key, list(group)))
    return key


def _value(text: str, old: Any, path: str) -> Any:
    if isinstance(old, dict):
        given = _literal(text)
        if not old and isinstance(given, dict):
            return given
        has = f"({', '.join(old)}); change one of them" if old else "that is empty; write {'NAME': VALUE}"
        raise UserError(f"{path} is a group of settings {has}.")
    if isinstance(old, bool):
        if text.lower() not in ("true", "false"):
            raise UserError(f"{path} is {text!r}; it must be true or false.")
        return text.lower() == "true"
    if isinstance(old, int | float):
        return _number(text, old, path)
    if isinstance(old, list | tuple):
        words = [word for word in text.strip("[]()").split(",") if word.strip()]
        # The items of an empty list are typed by their text.
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
    except UserError as error:
        raise UserError(f"{path} must be {kind}: {error}") from None
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
        # A text that Python cannot parse as a value, or only with excessive recursion, stays text.
        return text


def load(cls: type[T], config: str, overrides: Sequence[str]) -> T:
    """Return the dataclass that a config file and its overrides describe. Overrides may also set fields that the file
    leaves at their defaults.

    Raises:
      UserError: the file or a key does not exist (the message names the nearest key), or a value has the wrong type.
    """
    return build_overridden(cls, read(config), overrides)


def build_overridden(cls: type[T], settings: Any, overrides: Sequence[str]) -> T:
    """Return the dataclass that a ConfigDict and overrides describe."""
    described = dump(build(cls, settings.to_dict()))
    for word in overrides:
        override(described, word)
    return build(cls, described)


def load_architecture(config: str, overrides: Sequence[str]) -> tuple[Architecture, int | None]:
    """Return the validated architecture that a config file and its overrides describe, and the sequence length of the
    training run; None if the config has no recipe.
    """
    # Architectures import JAX, which `moejax init` does not need.
    from moejax.architecture import Architecture
    from moejax.data.config import DataConfig

    settings = read(config).to_dict()
    if "architecture" not in settings:
        raise UserError(
            f"{config} has no `architecture`, only {', '.join(settings)}; give the config file of a training run."
        )
    where = "config.architecture"
    settings["architecture"] = dump(build(Architecture, settings["architecture"], where))
    recipe, of_data = settings.get("recipe"), "config.recipe.data"
    if isinstance(recipe, dict):
        recipe["data"] = dump(build(DataConfig, recipe.get("data", {}), of_data))
    for word in overrides:
        override(settings, word)
    length = build(DataConfig, recipe["data"], of_data).sequence_length if isinstance(recipe, dict) else None
    architecture = build(Architecture, settings["architecture"], where)
    architecture.check()
    if fault := architecture.fault_in_training:
        say(f"! A model with this architecture ({config}) cannot be trained: {fault}")
    return architecture, length


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


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let a config import modules of its folder, as a script does, and forget these modules afterwards."""
    here, path, before, bytecode = folder.resolve(), list(sys.path), set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(here))
    importlib.invalidate_caches()
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, bytecode
        new = [name for name in sys.modules if name.partition(".")[0] not in before]
        own = {name for name in new if "." not in name and _folder_of(sys.modules[name]) == here}
        for name in new:
            if name.partition(".")[0] in own:
                del sys.modules[name]


def _folder_of(module: types.ModuleType) -> Path | None:
    """Return the folder that contains a module's file, or the folder of a package; None for a built-in module."""
    places = [*getattr(module, "__path__", []), getattr(module, "__file__", None)]
    return Path(places[0]).resolve().parent if places[0] else None


def read(config: str) -> Any:
    """Return the ConfigDict of ``FILE.py`` or ``FILE.py:arg``."""
    # The import takes a third of the time of a command without a config.
    from ml_collections import ConfigDict

    name, _, argument = config.partition(":")
    path = find(config)
    if not Path(name).exists():
        say(f"moejax: {name} does not exist here; reading moejax's own config instead: {path}")
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        with _apart(), _importable(path.parent):
            # An import would write __pycache__ into the user's folder. Python validates bytecode only by size and whole
            # seconds, so a script that writes one config after another could load an older one.
            exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except (Exception, SystemExit) as error:
        raise UserError(f"{name} cannot be run ({says('Python', error)}); correct the file.") from error
    if not callable(vars(module).get("get_config")):
        raise UserError(
            f"{name} is not a config file, because it has no function get_config; define one that returns a ConfigDict."
        )
    parameters = inspect.signature(module.get_config).parameters.values()
    if argument and not parameters:
        raise UserError(f"{name} takes no argument, but :{argument} was given; leave it out.")
    if not argument and any(parameter.default is parameter.empty for parameter in parameters):
        raise UserError(f"{name} needs an argument; give it as --config={name}:ARGUMENT.")
    try:
        with _apart(), _importable(path.parent):
            settings = module.get_config(*([argument] if argument else []))
    except (Exception, SystemExit) as error:
        remedy = "give another argument, or correct the file" if argument else "correct the file"
        raise UserError(f"get_config of {config} failed ({says('Python', error)}); {remedy}.") from error
    if not isinstance(settings, ConfigDict):
        raise UserError(
            f"get_config of {name} returned a {type(settings).__name__}; it must be an ml_collections.ConfigDict."
        )
    return settings
