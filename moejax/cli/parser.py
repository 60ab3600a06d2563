"""Build argparse parsers from the dataclasses of commands."""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from moejax.cli import command_module
from moejax.cli.options import REQUIRED, Command, flag_of, kind_of, local
from moejax.errors import UserError
from moejax.quantities import format, parse, parse_whole_number
from moejax.wording import did_you_mean, listed, one_line, told


def parse_command(name: str, words: Sequence[str], hidden: Mapping[str, Any] = types.MappingProxyType({})) -> Command:
    """Return the command that the words describe. ``hidden`` holds values for fields without an option.

    Raises:
      UserError: an option is unknown or has an invalid value. ``--help`` raises ``SystemExit``.
    """
    if empty := next((word for word in words if word.startswith("--") and word.endswith("=--")), None):
        # argparse treats this -- as the end of the options, and then finds no value.
        raise UserError(f"{empty.removesuffix('=--')} is '--', which is not a value; write a value after the =.")
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
        if "--" in words and unread[-1] in words[words.index("--") + 1 :]:
            raise UserError(
                f"{one_line(unread[-1])} comes after --, which ends the options; write the option before --."
            )
        # The name has two words for an action, which may lack an option that its command has.
        name = next((key for key, one in Command.NAMES.items() if one is cls), name)
        flags = [flag_of(cls, f.name) for f in dataclasses.fields(cls) if f.metadata]
        word = one_line(unread[0].partition("=")[0])
        known_words = did_you_mean(word, flags) if word.startswith("-") else f"see moejax {name} --help."
        raise UserError(f"{word} is not an option of moejax {name}; {known_words}")
    return cls(**known)


class _Parser(argparse.ArgumentParser):
    calls: Sequence[str] = ()
    """Calls of the command's actions, such as ``moejax laws show NAME``."""

    def error(self, message: str) -> NoReturn:
        message = one_line(message.removeprefix("argument "))
        if self.calls and (wrong := re.match(r"[^-].*: invalid choice: (.+?)(, maybe .*)? \(choose from ", message)):
            raise UserError(
                f"{self.prog} has no action {wrong[1]}; write {listed(self.calls, 'or')}. See {self.prog} --help."
            )
        option = message.removesuffix(": expected one argument")
        if option != message:
            # argparse takes -7B for an option.
            raise UserError(f"{option} has no value; write {option}=VALUE, also for a value that begins with -.")
        raise UserError(f"{message}. See {self.prog} --help.")


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command and its actions."""
    module = command_module(name)
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
        parser.calls = [_call(key, cls) for key, cls in classes.items()]
        for key, cls in classes.items():
            about = _prose(cls)
            _add_options(actions.add_parser(key.split()[1], description=about, help=about, allow_abbrev=False), cls)
    return parser


def _call(name: str, cls: type[Command]) -> str:
    """Return the call of an action with its positional arguments, such as ``moejax laws show NAME``."""
    places = [f.metadata["metavar"] for f in dataclasses.fields(cls) if f.metadata.get("place")]
    return " ".join(["moejax", name, *places])


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
        kind, _ = kind_of(hints[field.name])
        how: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(field)}
        if kind is bool:
            groups[title].add_argument(flag_of(cls, field.name), dest=field.name, action="store_true", **how)
            continue
        items = typing.get_args(kind) if typing.get_origin(kind) is tuple else (kind,)
        # A parser of one text may return a pair.
        several = items != (kind,) and (items[-1] is ... or not about.get("read"))
        how |= {"type": _reader(about.get("read") or READ[kind_of(items[0])[0]]), "metavar": about.get("metavar")}
        if about.get("choices"):
            how["choices"] = about["choices"]
        if about.get("place"):
            least = field.default is REQUIRED
            if several or not least:
                how["nargs"] = {(True, True): "+", (True, False): "*", (False, False): "?"}[several, least]
            groups[title].add_argument(field.name, **how)
            continue
        if about.get("nargs") or (several and items[-1] is not ...):
            how["nargs"] = about.get("nargs") or len(items)
        elif several:
            how["action"] = "append"
        if about.get("bare") is not None:
            how |= {"nargs": "?", "const": about["bare"]}
        groups[title].add_argument(flag_of(cls, field.name), dest=field.name, required=field.default is REQUIRED, **how)


READ: dict[Any, Callable[[str], Any]] = {int: parse_whole_number, float: parse, str: str, Path: local}
"""Parsers by option type: numbers with optional suffixes, and local paths."""


def _reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(told(error).rstrip(".")) from None

    return value


def _help(field: dataclasses.Field[Any]) -> str:
    about, default = field.metadata["help"], field.default
    if about is argparse.SUPPRESS:
        return about
    if default not in (REQUIRED, None, "") and not isinstance(default, bool | tuple):
        shown = format(default) if isinstance(default, int | float) else default
        about = f"{about} (default: {shown})".strip()
    return about.replace("%", "%%")
