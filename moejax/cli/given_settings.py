"""Words ``--config.a.b=VALUE`` that name no setting, or no value of its kind: said at once.

Settings and their kinds are read from the source of the dataclasses, as to import these is to import JAX.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moejax.cli.config_file import override
from moejax.cli.given_files import is_one_of_many

ARCHITECTURE = "moejax.architecture.Architecture"
TRAINING, STUDY = "moejax.train.training.Training", "moejax.study.study.Study"
"""What is read from a config file; an architecture stands in one as ``architecture``, beside what else there is."""

PLAIN: dict[str, Any] = {"int": 0, "float": 0.0, "str": "", "bool": False, "tuple[int, ...]": [0]}


class Open(dict[str, Any]):
    """A group that may have other settings beside those named; without any, what only the config file can tell."""


def check_settings(options: argparse.Namespace) -> None:
    """Raise ``UserError`` for a word that is wrong whatever the config file says."""
    of = getattr(options, "settings_of", ())
    if of and options.overrides and not is_one_of_many(options):
        known: dict[str, Any] = Open() if ARCHITECTURE in of else {}
        for name in of:
            known |= {"architecture": settings(name)} if name == ARCHITECTURE else settings(name)
        for word in options.overrides:
            if _is_told(known, word.partition("=")[0].split(".")[1:]):
                override(known, word)


def settings(name: str) -> dict[str, Any]:
    """The fields of a dataclass by name: groups of their own, a value of the field's kind, or an open group."""
    module, _, wanted = name.rpartition(".")
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    body = ast.parse(Path(found.origin).read_text(encoding="utf-8")).body
    classes = {node.name: f"{module}.{node.name}" for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("moejax."):
            classes |= {alias.name: f"{node.module}.{alias.name}" for alias in node.names if alias.name[0].isupper()}
    (fields,) = (node.body for node in body if isinstance(node, ast.ClassDef) and node.name == wanted)
    return {
        field.target.id: _kind(ast.unparse(field.annotation), classes)
        for field in fields
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def _kind(annotation: str, classes: dict[str, str]) -> Any:
    return settings(classes[annotation]) if annotation in classes else PLAIN.get(annotation, Open())


def _is_told(known: Any, path: Sequence[str]) -> bool:
    """Whether the kind of a setting, or that there is none, is known without the config file."""
    for key in path:
        if not isinstance(known, dict):
            return not isinstance(known, list)
        if key not in known:
            return not isinstance(known, Open)
        known = known[key]
    return not isinstance(known, Open)
