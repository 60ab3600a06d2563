"""Find config files of the user and of moejax, and apply overrides ``--config.a.b=VALUE``."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path, PurePosixPath
from typing import Any

import moejax
from moejax.config import unknown
from moejax.errors import UserError
from moejax.quantities import parse

FOLDER = "configs"
"""Name of the folder of configs in the working directory, in a checkout and in the installed package."""


def find(config: str) -> Path:
    """Return the file of ``FILE.py`` or ``FILE.py:arg``: the user's, or else moejax's own of this name.

    Raises:
      UserError: neither exists; the message lists the existing ones.
    """
    name = config.partition(":")[0]
    path = Path(name)
    if path.is_file():
        return path
    if own := find_packaged(name):
        return own
    here = map(str, sorted(Path(FOLDER).rglob("*.py")))
    known = dict.fromkeys([*here, *packaged_names()])
    raise UserError(f"There is no config file {name or repr(name)}. There are {', '.join(known)}.")


def packaged_folder() -> Path:
    """Return the folder of moejax's own configs: in the installed package, or next to it in a checkout."""
    package = Path(moejax.__file__).parent
    return next((path for path in (package / FOLDER, package.parent / FOLDER) if path.is_dir()), package / FOLDER)


def packaged_files() -> list[PurePosixPath]:
    """Return the paths of moejax's own configs, relative to ``packaged_folder()``."""
    here = packaged_folder()
    return sorted(PurePosixPath(path.relative_to(here).as_posix()) for path in here.rglob("*.py"))


def packaged_names() -> list[str]:
    """Return the names of moejax's own configs as help and pages show them."""
    return [f"{FOLDER}/{path}" for path in packaged_files()]


def find_packaged(name: str) -> Path | None:
    """Return the file of one of moejax's configs by name (``configs/studies/zhao.py``, ``studies/zhao`` or ``zhao``),
    or None.
    """
    asked = PurePosixPath(name)
    asked = asked.with_suffix("") if asked.suffix == ".py" else asked
    for path in packaged_files():
        if asked in (FOLDER / path.with_suffix(""), path.with_suffix(""), PurePosixPath(path.stem)):
            return packaged_folder() / path
    return None


def override(settings: dict[str, Any], word: str) -> None:
    """Apply ``--config.a.b=value``. The new value is parsed as the type of the old one."""
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
            raise UserError(f"{where}.{key} is not known; {where} is a list with items 0 to {len(group) - 1}.")
        return int(key)
    if not isinstance(group, dict):
        raise UserError(f"{where} is a single setting, so it has no {key}.")
    if key not in group and not group:
        raise UserError(f"{where} is a group of settings that has none yet; give it as {where}={{'{key}': VALUE}}.")
    if key not in group:
        raise UserError(unknown(f"{where}.{key}", key, list(group)))
    return key


def _value(text: str, old: Any, path: str) -> Any:
    if isinstance(old, dict):
        given = _literal(text)
        if not old and isinstance(given, dict):
            return given
        has = f"({', '.join(old)}); change one of them" if old else "that has none yet; give it as {'NAME': VALUE}"
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
