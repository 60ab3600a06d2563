"""Convert plain nested mappings to frozen dataclasses and back, for configs and stored files."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from moejax.errors import UserError
from moejax.wording import did_you_mean, shown

T = TypeVar("T")


def build(cls: type[T], values: Any, where: str = "config") -> T:
    """Build a frozen dataclass from a mapping of its fields. Nested dataclasses are built from nested mappings or
    instances.

    The text "auto" is replaced by the entry "auto" of the field's metadata.

    Raises:
      UserError: a key is unknown or missing, or a value has the wrong type or is outside its range
        (``moejax.ranges``). The message gives the path of the key below ``where``.
    """
    if isinstance(values, cls):
        return values
    if not isinstance(values, Mapping):
        raise UserError(f"{where} is {values!r}; it must be a group of settings.")
    hints = _hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise UserError(unknown(_below(where, key), str(key), list(fields)))
    required = [n for n, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise UserError(f"{where} lacks {', '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}.")
    return cls(
        **{key: convert(hints[key], _auto(fields[key], value), _below(where, key)) for key, value in values.items()}
    )


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Python evaluates annotations again on each call, which took half of the time to check a study.
    return typing.get_type_hints(cls, include_extras=True)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A constraint on the fields of a dataclass. The class lists its constraints in ``RULES``."""

    holds: Callable[[Any], Any]
    """Return a true value for an instance that obeys the rule."""
    otherwise: str
    """Sentence for the user with values, rule and remedy; ``{self.NAME}`` stands for a field of the instance."""


def check_fields(value: Any, where: str = "") -> None:
    """Raise ``UserError`` if a dataclass violates one of its rules, or if it or a nested dataclass violates the types
    or ranges that ``build`` checks.
    """
    build(type(value), dump(value), where)
    for rule in getattr(value, "RULES", ()):
        if not rule.holds(value):
            raise UserError(rule.otherwise.format(self=value))


def check_name(name: str, where: str = "name") -> None:
    """Raise ``UserError`` if a name is not valid for a file or folder."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{where} is {name!r}; it names a folder: use only letters, digits, '.', '_' and '-'.")


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def dump(value: Any) -> Any:
    """Return plain dicts, lists and scalars that JSON can represent; ``build`` reads them back."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: dump(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [dump(v) for v in value]
    if isinstance(value, Mapping):
        return {k: dump(v) for k, v in value.items()}
    return value


def unknown(path: str, name: str, known: Sequence[str]) -> str:
    """Return the sentence for an unknown name, with the nearest known names, or all of them."""
    return f"{path} is unknown; {did_you_mean(name, known)}"


def _auto(field: dataclasses.Field, value: Any) -> Any:
    return field.metadata["auto"] if value == "auto" and "auto" in field.metadata else value


def convert(hint: Any, value: Any, where: str) -> Any:
    """Convert a plain value to the type ``hint``. If ``hint`` is a mapping, it gives the types of required keys.

    Raises:
      UserError: the value has the wrong type or is outside its range; the message gives its path below ``where``.
    """
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        kind, allowed = typing.get_args(hint)
        value = convert(kind, value, where)
        if value not in allowed:
            raise UserError(f"{where} is {shown(value)}; {allowed.advice(value)}")
        return value
    if isinstance(hint, Mapping):
        group = convert(dict, value, where)
        missing = [name for name in hint if name not in group]
        if missing:
            raise UserError(f"{where} lacks {', '.join(missing)}.")
        return {**group, **{name: convert(kind, group[name], f"{where}.{name}") for name, kind in hint.items()}}
    if hint in (dict, list):
        if not isinstance(value, hint):
            kind = "a group of named items" if hint is dict else "a list"
            raise UserError(f"{where} is {shown(value)}; it must be {kind}.")
        return value
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        possible = [option for option in options if option is not type(None)]
        for option in possible[:-1]:
            with contextlib.suppress(ValueError):
                return convert(option, value, where)
        return convert(possible[-1], value, where)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise UserError(f"{where} is {shown(value)}; it must be a list.")
        kinds = typing.get_args(hint)
        if kinds[-1] is ...:
            kinds = (kinds[0],) * len(value)
        if len(kinds) != len(value):
            raise UserError(f"{where} is {shown(value)}; give a list of {len(kinds)} values.")
        return tuple(convert(kind, v, f"{where}[{i}]") for i, (kind, v) in enumerate(zip(kinds, value, strict=True)))
    if origin is list:
        return [
            convert(typing.get_args(hint)[0], v, f"{where}[{i}]") for i, v in enumerate(convert(list, value, where))
        ]
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise UserError(f"{where} is {shown(value)}; it must be a group of named items.")
        if other := [key for key in value if not isinstance(key, str)]:
            raise UserError(f"{where} has the key {shown(other[0])}; write keys as text, here {str(other[0])!r}.")
        return {key: convert(typing.get_args(hint)[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
    raise UserError(f"{where} is {shown(value)}; it must be {names[hint]}.")


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def restored(hint: Any, plain: Any, where: str) -> Any:
    """Convert plain data to a type, as ``convert`` does, but read null numbers as NaN.

    Dataclasses may restore themselves with a method ``from_json``. Entries without a field are ignored.

    Raises:
      UserError: a value has another type; a missing entry raises ``TypeError``.
    """
    origin, kinds = typing.get_origin(hint), typing.get_args(hint)
    if hint is float and plain is None:
        return float("nan")
    if origin is types.UnionType and kinds[1:] == (type(None),):
        return None if plain is None else restored(kinds[0], plain, where)
    if origin is tuple and kinds[-1] is ...:
        return tuple(restored(kinds[0], one, f"{where}[{i}]") for i, one in enumerate(convert(list, plain, where)))
    if origin is Mapping:
        return {name: restored(kinds[1], one, f"{where}.{name}") for name, one in convert(dict, plain, where).items()}
    if (read := getattr(hint, "from_json", None)) is not None:
        return read(plain)
    if not dataclasses.is_dataclass(hint):
        return convert(hint, plain, where)
    hints, entries = typing.get_type_hints(hint), convert(dict, plain, where)
    known = {name: restored(hints[name], one, f"{where}.{name}") for name, one in entries.items() if name in hints}
    return hint(**known)
