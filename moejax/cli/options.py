"""Declare commands as frozen dataclasses, and validate their options.

A subclass of ``Command`` is a command: its docstring is the help text, its fields are the options, and ``run`` does the
work. The module's ``EXAMPLE`` holds the command's examples.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from moejax.errors import UserError
from moejax.wording import listed

REQUIRED = dataclasses.MISSING


def option(
    default: Any,
    help: str = "",
    *,
    flag: str = "",
    metavar: str | tuple[str, ...] | None = None,
    group: str = "",
    read: Callable[[str], Any] | None = None,
    choices: Sequence[str] = (),
    bare: str | None = None,
    excludes: Sequence[str] = (),
    needs: Sequence[str] = (),
    output: bool = False,
    nargs: str | None = None,
) -> Any:
    """Declare an option; the field's annotation defines its type and range (``moejax.ranges``).

    Args:
      default: the default value, or ``REQUIRED``.
      flag: name of the option, if it differs from the field name.
      group: title of its section in the help text, optionally followed by a colon and a description.
      read: parser of the text, if the type does not determine it.
      bare: value if the option is given without a value.
      excludes: fields that may not be given together with this one.
      needs: fields that must be given together with this one.
      output: True if the option names a file or folder to write.
      nargs: ``+`` for a tuple whose values follow the option once, instead of one value per occurrence.
    """
    about = {name: value for name, value in locals().items() if name != "default"}
    return dataclasses.field(default=default, metadata=about)


def argument(help: str, *, metavar: str, default: Any = REQUIRED, read: Callable[[str], Any] | None = None) -> Any:
    """Declare a positional argument. A tuple field accepts several values, and at least one if it has no default."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "read": read, "place": True})


def out(help: str, *files: str, required: bool = False, metavar: str = "DIR") -> Any:
    """Declare ``--out``. The named files are written there; existing ones are checked before any work."""
    about = {"help": help, "metavar": metavar, "read": local, "output": True, "files": files}
    return dataclasses.field(default=REQUIRED if required else None, metadata=about)


def hidden(default: Any, **about: Any) -> Any:
    """Declare an option for moejax's own subprocesses, which the help text omits."""
    return dataclasses.field(default=default, metadata={"help": argparse.SUPPRESS, **about})


def local(text: str) -> Path:
    """Parse a path that must be local, not in an object store."""
    if not text:
        raise UserError("is empty; give a local path, or leave the option out")
    if re.match("[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise UserError(
            f"{text} is not a local path; give a local path, such as results, and copy the files afterwards"
        )
    return Path(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its options."""

    NAMES: ClassVar[dict[str, type[Command]]] = {}
    """Imported commands by name. The name of an action has two words, as in ``data prepare``."""
    ONE_OF: ClassVar[tuple[str, ...]] = ()
    """Fields of which one must be given."""
    json: bool = option(False, "print the result on stdout as JSON; messages go to stderr")

    def __init_subclass__(cls, name: str = "", **others: Any) -> None:
        """Register a command; a class without a name only holds options shared by several commands."""
        super().__init_subclass__(**others)
        if name:
            Command.NAMES[name] = cls

    def check(self) -> None:
        """Raise ``UserError`` if options violate rules that the fields do not declare. Do no computation."""

    def prepare(self) -> None:
        """Configure the process before JAX is imported."""

    def run(self) -> int | None:
        """Do the work, print the result, and return the exit status; None for success."""
        raise NotImplementedError


def flag_of(cls: type[Command], name: str) -> str:
    """Return the option of a field, such as ``--hold-out``, or the metavariable of a positional argument."""
    about = cls.__dataclass_fields__[name].metadata
    return about["metavar"] if about.get("place") else f"--{about.get('flag') or name.replace('_', '-')}"


def given(command: Command) -> list[str]:
    """Return the fields that differ from their defaults."""
    return [f.name for f in dataclasses.fields(command) if getattr(command, f.name) != f.default and f.metadata]


def check(command: Command) -> None:
    """Raise ``UserError`` if options violate the declarations of their fields or the command's own rules."""
    cls, names, hints = type(command), given(command), typing.get_type_hints(type(command), include_extras=True)
    if cls.ONE_OF and not {*cls.ONE_OF} & {*names}:
        flags = [flag_of(cls, name) for name in cls.ONE_OF]
        raise UserError(f"A required option is missing; give {listed(flags, 'or')}.")
    for name in names:
        for other in {*cls.__dataclass_fields__[name].metadata.get("excludes", ())} & {*names}:
            raise UserError(f"{flag_of(cls, name)} and {flag_of(cls, other)} exclude each other; give one of them.")
    for name in names:
        about, value = cls.__dataclass_fields__[name].metadata, getattr(command, name)
        allowed = kind_of(hints[name])[1]
        for one in value if isinstance(value, tuple) else (value,):
            if allowed is not None and one not in allowed:
                raise UserError(f"{flag_of(cls, name)} is {one:g}; give {allowed}.")
        for other in about.get("needs", ()):
            if other not in names:
                raise UserError(f"{flag_of(cls, name)} needs {flag_of(cls, other)}; give both, or neither.")
    command.check()


def kind_of(hint: Any) -> tuple[Any, Any]:
    """Return the type of a field without None, and the range of its values (None if unlimited)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)
    inner = typing.get_args(hint)
    return hint, typing.get_args(inner[0])[1] if inner and typing.get_origin(inner[0]) is Annotated else None
