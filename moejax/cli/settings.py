"""The settings that a config file may have, as data: names and kinds, for ``--config.a.b=VALUE``, without JAX.

``settings.json`` has the fields of every dataclass that config files describe, each with its kind: int, float, str,
bool, ints, another dataclass, or any, of which only the config file can tell. ``tests/test_layers.py`` holds it to the
dataclasses, and ``make settings`` (this file as a program) writes it anew.
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
"""What a config file describes. An architecture stands in one as ``architecture``, beside what else there is."""
MODULES = {ARCHITECTURE: "moejax.architecture", TRAINING: "moejax.train.training", STUDY: "moejax.study.study"}
"""Where these dataclasses are."""
KINDS: dict[Any, str] = {int: "int", float: "float", str: "str", bool: "bool", tuple[int, ...]: "ints"}
EXAMPLES: dict[str, Any] = {"int": 0, "float": 0.0, "str": "", "bool": False, "ints": [0]}
"""A value of each kind: an override is read as the kind of what it replaces."""


class Open(dict[str, Any]):
    """A group that may have other settings beside those named; without any, what only the config file can tell."""


def settings_of(*described: str) -> dict[str, Any]:
    """The settings of a config file that describes one of these: nested groups, with an example of each kind."""
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
    """What ``settings.json`` must hold: the fields as the dataclasses themselves have them. Imports JAX."""
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
