"""List the settings of config files as data, with names and kinds, for ``--config.a.b=VALUE`` without JAX.

``settings.json`` has the fields of every dataclass that config files describe, each with its kind: int, float, str,
bool, ints, another dataclass, or any if only the config file determines it. ``tests/test_layers.py`` compares it with
the dataclasses, and ``make settings`` (this file as a program) regenerates it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import typing
from pathlib import Path
from typing import Any

from moejax.json_text import json_text

FILE = Path(__file__).with_suffix(".json")
ARCHITECTURE, TRAINING, STUDY = "Architecture", "Training", "Study"
"""Names of the dataclasses that config files describe. An architecture is the setting ``architecture`` of such
a file.
"""
MODULES = {ARCHITECTURE: "moejax.architecture", TRAINING: "moejax.train.training", STUDY: "moejax.study.study"}
"""Modules of these dataclasses."""
KINDS: dict[Any, str] = {int: "int", float: "float", str: "str", bool: "bool", tuple[int, ...]: "ints"}
EXAMPLES: dict[str, Any] = {"int": 0, "float": 0.0, "str": "", "bool": False, "ints": [0]}
"""A value of each kind, since an override is parsed as the kind of the old value."""


class Open(dict[str, Any]):
    """A group that may have further settings. An empty one stands for a setting that only the config file
    determines.
    """


def settings_of(*described: str) -> dict[str, Any]:
    """Return the settings of a config file that describes one of these: nested groups, with an example of each kind."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, Any] = Open() if ARCHITECTURE in described else {}
    for name in described:
        found |= {"architecture": _group(stored, name)} if name == ARCHITECTURE else _group(stored, name)
    return found


def _group(stored: dict[str, dict[str, str]], name: str) -> dict[str, Any]:
    return {
        field: _group(stored, kind) if kind in stored else EXAMPLES.get(kind, Open())
        for field, kind in stored[name].items()
    }


def declared() -> dict[str, dict[str, str]]:
    """Return the content of ``settings.json`` from the dataclasses themselves. Imports JAX."""
    found: dict[str, dict[str, str]] = {}

    def add(kind: Any) -> str:
        if not hasattr(kind, "__dataclass_fields__"):
            return KINDS.get(kind, "any")
        hints = typing.get_type_hints(kind)
        found[kind.__name__] = {field.name: add(hints[field.name]) for field in dataclasses.fields(kind)}
        return kind.__name__

    for name, module in MODULES.items():
        add(getattr(importlib.import_module(module), name))
    return found


if __name__ == "__main__":
    FILE.write_text(json_text(declared(), indent=1) + "\n", encoding="utf-8")
