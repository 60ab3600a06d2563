"""Write shell completion and the reference page of options from the dataclasses of commands.

``make settings`` runs this file as a program, which writes ``docs/settings-of-commands.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from pathlib import Path
from typing import Any

from moejax.cli import COMMANDS, command_module
from moejax.cli.options import REQUIRED, Command, flag_of, kind_of

PAGE = Path("docs", "settings-of-commands.md")
HEAD = """\
# Options of the commands

Numbers may be written as 30B, 1.5T or 1e22. An option marked "repeated" may be given several times. Every command also
has `--help`; `moejax --completion` prints completion for bash (`eval "$(moejax --completion)"`).
"""
FOOT = "*Written by `make settings` from the dataclasses of the commands; it is not edited by hand.*"
COMPLETION = """\
_moejax() {{
    local words current=${{COMP_WORDS[COMP_CWORD]}}
    case "${{COMP_WORDS[*]:1:2}}" in
{cases}
        *) words="{commands}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current"))
}}
complete -o filenames -F _moejax moejax"""


def commands() -> dict[str, type[Command]]:
    """Return the class of every command and action, keyed by name."""
    for name in COMMANDS:
        command_module(name)
    return {key: Command.NAMES[key] for name in COMMANDS for key in Command.NAMES if key.split()[0] == name}


def shown(cls: type[Command]) -> list[dataclasses.Field[Any]]:
    """Return the options in a command's help: first its own, then the shared options."""
    return [f for f in dataclasses.fields(cls) if f.metadata and f.metadata["help"] is not argparse.SUPPRESS]


def completion() -> str:
    """Return a bash script that completes commands, actions and options."""
    every = commands()
    cases = []
    # The pattern of a command also matches its actions, which come first.
    for name in sorted(every, key=lambda name: (name.split()[0], -len(name.split()))):
        actions = [key.split()[1] for key in every if key.startswith(f"{name} ")]
        words = [flag_of(every[name], f.name) for f in shown(every[name]) if not f.metadata.get("place")]
        cases.append(f'        "{name}"*) words="{" ".join([*actions, *words])}" ;;')
    for name in {key.split()[0] for key in every} - set(every):
        actions = " ".join(key.split()[1] for key in every if key.startswith(f"{name} "))
        cases.append(f'        "{name}"*) words="{actions}" ;;')
    return COMPLETION.format(cases="\n".join(cases), commands=" ".join(COMMANDS))


def page() -> str:
    """Return the page in Markdown."""
    # Tables are rendered by the report, which completion does not need.
    from moejax.report.render import markdown_table
    from moejax.result import Column, Table

    parts = [HEAD]
    columns = [Column(name, words=True) for name in ("option", "value", "default", "meaning")]
    for name, cls in commands().items():
        rows = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in _row(cls, field)] for field in shown(cls)]
        parts.append(f"## `{name}`\n\n{' '.join((cls.__doc__ or '').split())}\n")
        parts.append(f"{markdown_table(Table('', columns, rows), str)}\n")
    return "\n".join([*parts, FOOT, ""])


def _row(cls: type[Command], field: dataclasses.Field[Any]) -> list[str]:
    about, default, metavar = field.metadata, field.default, field.metadata.get("metavar") or ""
    kind, allowed = kind_of(typing.get_type_hints(cls, include_extras=True)[field.name])
    repeated = typing.get_origin(kind) is tuple and typing.get_args(kind)[-1] is ... and not about.get("place")
    names = " or ".join(about.get("choices") or ()) or (metavar if isinstance(metavar, str) else " ".join(metavar))
    value = "" if kind is bool else str(allowed or names) + ", repeated" * repeated
    shown_default = "required" if default is REQUIRED else "" if default in (None, False, (), "") else f"`{default}`"
    return [f"`{flag_of(cls, field.name)}`", value, shown_default, about["help"]]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
