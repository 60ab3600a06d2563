"""Write ``docs/settings.md``: every setting of a config file with its range, default and docstring.

``make settings`` runs this file as a program, which regenerates the page.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from moejax.report.render import markdown_table
from moejax.result import Column, Table
from moejax.wording import listed, some

TRAINING, STUDY = "Training", "Study"
MODULES = {"Architecture": "moejax.architecture", TRAINING: "moejax.train.training", STUDY: "moejax.study.study"}
"""Modules of the dataclasses that config files describe. An architecture is a setting of a training file."""
KINDS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}
MOST_NAMES = 10
"""Maximum number of settings in a group that is listed inline; larger groups have their own section."""
COLUMNS = tuple(Column(heading, words=True) for heading in ("setting", "value", "default", "description"))
HEAD = """\
# Settings of a config file

A [training run](training.md) has the settings of the first sections, an architecture and a recipe. A
[study](studies.md) has a recipe and the settings of the last sections. Set each by its name in the
`ConfigDict` that the file returns, or with `--config.NAME=VALUE` on the command line, such as
`--config.recipe.optimizer.learning_rate=3e-3`. Settings whose default is a dash are required.
"""
FOOT = "*Written by `make settings` from the dataclasses; it is not edited by hand.*"


def page() -> str:
    """Return the page in Markdown."""
    seen: set[Any] = set()
    parts = [HEAD]
    for name in (TRAINING, STUDY):
        for cls, path in _groups(getattr(importlib.import_module(MODULES[name]), name), "", seen):
            said = re.split(r"\n\s*\n", inspect.cleandoc(cls.__doc__ or ""))[0]
            title = f"`{path}`" if path else f"A {name.lower()}"
            parts.append(f"## {title}\n\n{_markdown(said)}\n\n{markdown_table(_table(cls, path), str)}\n")
    return "\n".join([*parts, FOOT, ""])


def _groups(cls: Any, path: str, seen: set[Any]) -> Iterator[tuple[Any, str]]:
    """Yield a dataclass and its nested dataclasses, each once, with the path of its fields."""
    if cls not in seen:
        seen.add(cls)
        yield cls, path
        for field, hint in typing.get_type_hints(cls).items():
            if dataclasses.is_dataclass(hint):
                yield from _groups(hint, _below(path, field), seen)


def _table(cls: Any, path: str) -> Table:
    about, hints = docstrings(cls), typing.get_type_hints(cls, include_extras=True)
    rows = []
    for field in dataclasses.fields(cls):
        name, said, hint = _below(path, field.name), about.get(field.name, ""), hints[field.name]
        value = f"[a group](#{name.replace('.', '')})" if dataclasses.is_dataclass(hint) else _value(hint)
        rows.append([f"`{name}`", value + _keys(said, cls), _default(field), said])
    return Table("", COLUMNS, [[cell.replace("|", "\\|") for cell in row] for row in rows])


def docstrings(cls: Any) -> dict[str, str]:
    """Return the docstring of each field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: _markdown(below.value.value)
        for field, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(below.value.value, str)
    }


def _value(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return str(inner[1])
    if origin in (typing.Union, types.UnionType):
        return " or ".join("None" if one is types.NoneType else _value(one) for one in inner)
    if origin in (tuple, list):
        return f"a list, each {_value(inner[0])}"
    if origin in (dict, Mapping) or hint in (dict, list):
        each = _value(inner[1]) if inner else ""
        return f"a group of named items{', each ' if each else ''}{each}"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if len(dataclasses.fields(hint)) > MOST_NAMES:
            return f"[a group](#{hint.__name__.lower()})"
        return f"a group of {listed(f'`{field.name}`' for field in dataclasses.fields(hint))}"
    return KINDS.get(hint, "")


def _keys(said: str, cls: Any) -> str:
    named = re.match(r"A key of `([\w.]+)`", said)
    if not named:
        return ""
    module, _, name = named[1].rpartition(".")
    return f": {some([f'`{key}`' for key in vars(importlib.import_module(module or cls.__module__))[name]], 20)}"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value: Any = field.default_factory()
        return "" if dataclasses.is_dataclass(value) else f"`{value!r}`"
    return "–" if field.default is dataclasses.MISSING else f"`{field.default!r}`"


def _markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


if __name__ == "__main__":
    Path("docs", "settings.md").write_text(page(), encoding="utf-8")
