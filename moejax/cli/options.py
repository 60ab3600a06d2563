"""Declare commands as frozen dataclasses; derive parsers and checks from their fields.

A subclass of ``Command`` is a command: its docstring is the help text, its fields are the options, and ``run`` does the
work. The module of a command has its examples as ``EXAMPLE``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn

from moejax.errors import UserError
from moejax.quantities import format, parse, parse_whole_number
from moejax.wording import did_you_mean, listed, one_line, told

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
) -> Any:
    """Declare an option; its type and range are those of the field's annotation (``moejax.ranges``).

    Args:
      default: the default value, or ``REQUIRED``.
      flag: name of the option, if it differs from the field's.
      group: title of its section in the help text, and after a colon its description.
      read: parser of the text, if it does not follow from the type.
      bare: text for the option without a value.
      excludes: fields that may not be given together with this one.
      needs: fields that must be given together with this one.
      output: True if the option names a place to write to.
    """
    about = {name: value for name, value in locals().items() if name != "default"}
    return dataclasses.field(default=default, metadata=about)


def argument(help: str, *, metavar: str, default: Any = REQUIRED, read: Callable[[str], Any] | None = None) -> Any:
    """Declare a positional argument; a tuple takes any number of them, at least one if it has no default."""
    return dataclasses.field(default=default, metadata={"help": help, "metavar": metavar, "read": read, "place": True})


def out(help: str, *files: str, required: bool = False, metavar: str = "DIR") -> Any:
    """Declare ``--out``. The named files are written there; existing ones are checked before any work."""
    about = {"help": help, "metavar": metavar, "read": local, "output": True, "files": files}
    return dataclasses.field(default=REQUIRED if required else None, metadata=about)


def hidden(default: Any, **about: Any) -> Any:
    """Declare an option of moejax's own subprocesses, which the help text does not show."""
    return dataclasses.field(default=default, metadata={"help": argparse.SUPPRESS, **about})


def local(text: str) -> Path:
    """Parse a path of this machine, where an object store is not supported."""
    if not text:
        raise UserError("is empty; name a place of this machine, or leave it out")
    if re.match("[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise UserError(f"{text} is no place of this machine; name one, such as results, and copy it")
    return Path(text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its options."""

    NAMES: ClassVar[dict[str, type[Command]]] = {}
    """Imported commands by name; a name has two words for an action, as in ``data prepare``."""
    ONE_OF: ClassVar[tuple[str, ...]] = ()
    """Options of which one is required."""
    json: bool = option(False, "print the result on stdout as JSON; messages go to stderr")

    def __init_subclass__(cls, name: str = "", **others: Any) -> None:
        """Register a command; a class without a name has options for several commands."""
        super().__init_subclass__(**others)
        if name:
            Command.NAMES[name] = cls

    def check(self) -> None:
        """Raise ``UserError`` for rules that the fields do not declare, without computation."""

    def prepare(self) -> None:
        """Configure the process before JAX is imported."""

    def run(self) -> int | None:
        """Do the work, print the result, and return the exit status; None for success."""
        raise NotImplementedError


def flag_of(cls: type[Command], name: str) -> str:
    """Return the option of a field, as in ``--hold-out``; the metavariable of a positional argument."""
    about = cls.__dataclass_fields__[name].metadata
    return about["metavar"] if about.get("place") else f"--{about.get('flag') or name.replace('_', '-')}"


def given(command: Command) -> list[str]:
    """Return the fields that differ from their defaults."""
    return [f.name for f in dataclasses.fields(command) if getattr(command, f.name) != f.default and f.metadata]


def check(command: Command) -> None:
    """Raise ``UserError`` if options violate what their fields declare, or the command's own rules."""
    cls, names, hints = type(command), given(command), typing.get_type_hints(type(command), include_extras=True)
    if cls.ONE_OF and not {*cls.ONE_OF} & {*names}:
        raise UserError(f"One of {listed([flag_of(cls, name) for name in cls.ONE_OF], 'or')} is required.")
    for name in names:
        for other in {*cls.__dataclass_fields__[name].metadata.get("excludes", ())} & {*names}:
            raise UserError(f"{flag_of(cls, name)} and {flag_of(cls, other)} exclude each other; give one of them.")
    for name in names:
        about, value = cls.__dataclass_fields__[name].metadata, getattr(command, name)
        allowed = _kind(hints[name])[1]
        for one in value if isinstance(value, tuple) else (value,):
            if allowed is not None and one not in allowed:
                raise UserError(f"{flag_of(cls, name)} is {one:g}; give {allowed}.")
        for other in about.get("needs", ()):
            if other not in names:
                raise UserError(f"{flag_of(cls, name)} needs {flag_of(cls, other)}; give both, or neither.")
    command.check()


def parse_command(name: str, words: Sequence[str], hidden: Mapping[str, Any] = types.MappingProxyType({})) -> Command:
    """Return the command that the words describe. ``hidden`` has values for fields without an option.

    Raises:
      UserError: an option is unknown or has an invalid value. ``--help`` raises ``SystemExit``.
    """
    if empty := next((word for word in words if word.startswith("--") and word.endswith("=--")), None):
        # argparse treats this -- as the end of the options, and then finds no value.
        raise UserError(f"{empty.removesuffix('=--')} is '--', which is no value; give one after the =.")
    options, unread = parser_of(name).parse_known_args(words)
    values = vars(options)
    cls, known = values.pop("command"), {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            value = values.pop(field.name)
            known[field.name] = tuple(value) if isinstance(value, list) else value
        elif field.name in hidden and not field.metadata:
            known[field.name] = hidden[field.name]
    # An option before the action may be one that only other actions read.
    unread += [f"--{name.replace('_', '-')}" for name, value in values.items() if value is not False]
    if unread:
        flags = [flag_of(cls, f.name) for f in dataclasses.fields(cls) if f.metadata]
        word = one_line(unread[0].partition("=")[0])
        known_words = did_you_mean(word, flags) if word.startswith("-") else f"see moejax {name} --help."
        raise UserError(f"{word} is no option of moejax {name}; {known_words}")
    return cls(**known)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{one_line(message.removeprefix('argument '))}. See {self.prog} --help.")


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command and its actions."""
    module = importlib.import_module(f"moejax.cli.commands.{name}")
    classes = {key: cls for key, cls in Command.NAMES.items() if key.split()[0] == name}
    main = classes.pop(name, None)
    parser = _Parser(
        prog=f"moejax {name}",
        description=_prose(main or module),
        epilog=f"example:\n{module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_options(parser, main or Command)
    if classes:
        actions = parser.add_subparsers(required=main is None, metavar=" | ".join(key.split()[1] for key in classes))
        for key, cls in classes.items():
            about = _prose(cls)
            _add_options(actions.add_parser(key.split()[1], description=about, help=about, allow_abbrev=False), cls)
    return parser


def _prose(of: Any) -> str:
    return textwrap.fill(" ".join((of.__doc__ or "").split()), 100)


def _add_options(parser: argparse.ArgumentParser, cls: type[Command]) -> None:
    hints = typing.get_type_hints(cls, include_extras=True)
    groups: dict[str, Any] = {"": parser}
    parser.set_defaults(command=cls)
    # Options of the command itself come before those that several commands share.
    shared = {name for base in cls.__mro__[1:] for name in vars(base).get("__dataclass_fields__", {})}
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name in shared):
        if not (about := field.metadata):
            continue
        title, _, described = about.get("group", "").partition(": ")
        if title not in groups:
            groups[title] = parser.add_argument_group(title, described or None)
        kind, _ = _kind(hints[field.name])
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(field)}
        if kind is bool:
            groups[title].add_argument(flag_of(cls, field.name), dest=field.name, action="store_true", **how)
            continue
        items = typing.get_args(kind) if typing.get_origin(kind) is tuple else (kind,)
        # A parser of one text may return a pair.
        several = items != (kind,) and (items[-1] is ... or not about.get("read"))
        how |= {"type": _reader(about.get("read") or READ[_kind(items[0])[0]]), "metavar": about.get("metavar")}
        if about.get("choices"):
            how["choices"] = about["choices"]
        if about.get("place"):
            least = field.default is REQUIRED
            if several or not least:
                how["nargs"] = {(True, True): "+", (True, False): "*", (False, False): "?"}[several, least]
            groups[title].add_argument(field.name, **how)
            continue
        if about.get("nargs") or (several and items[-1] is not ...):
            how["nargs"] = about.get("nargs", len(items))
        elif several:
            how["action"] = "append"
        if about.get("bare") is not None:
            how |= {"nargs": "?", "const": about["bare"]}
        groups[title].add_argument(flag_of(cls, field.name), dest=field.name, required=field.default is REQUIRED, **how)


READ: dict[Any, Callable[[str], Any]] = {int: parse_whole_number, float: parse, str: str, Path: local}
"""Parsers of the types of options: numbers as people write them, and local paths."""


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(told(error).rstrip(".")) from None

    return value


def _kind(hint: Any) -> tuple[Any, Any]:
    """Return the type of a field without None, and the range of its values; None if there is none."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not types.NoneType)
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)
    inner = typing.get_args(hint)
    return hint, typing.get_args(inner[0])[1] if inner and typing.get_origin(inner[0]) is Annotated else None


def _help(field: dataclasses.Field[Any]) -> str:
    """Return the help text of an option with its default."""
    about, default = field.metadata["help"], field.default
    if about is argparse.SUPPRESS:
        return about
    if default not in (REQUIRED, None, "") and not isinstance(default, bool | tuple):
        shown = format(default) if isinstance(default, int | float) else default
        about = f"{about} (default: {shown})".strip()
    return about.replace("%", "%%")
