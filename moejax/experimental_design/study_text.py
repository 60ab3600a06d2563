"""A study that trains what is planned, as the text of a config file."""

from __future__ import annotations

import dataclasses
import pprint
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from moejax.architecture import Architecture


def study_text(
    name: str, architectures: Sequence[Architecture], tokens: Sequence[float], recipe: Mapping[str, Any], says: str
) -> str:
    """A file for ``moejax study --config``: a model per architecture, with the budgets it is trained to.

    Args:
      recipe: settings that all runs share, as in a config; ``budgets_tokens`` are added here.
      says: what the file is, for its docstring.
    """
    budgets: dict[Architecture, list[int]] = {}
    for architecture, count in zip(architectures, tokens, strict=True):
        budgets.setdefault(architecture, []).append(int(count))
    budgets = {architecture: sorted(set(counts)) for architecture, counts in budgets.items()}
    names = dict(zip(architectures, names_of(architectures), strict=True))
    every = sorted({count for counts in budgets.values() for count in counts})
    added = ""
    if len(every) == 1:
        # A study holds its longest budget out, and so needs another: half as long, a branch of the same trunk.
        half = every[0] // 2
        every, budgets = [half, *every], {a: [half, *counts] for a, counts in budgets.items()}
        added = (
            "\nThe budget of half the tokens is a branch beside what was planned: a study needs two to hold one out."
        )
    models = {names[a]: _settings(a) for a in budgets}
    recipes = {names[a]: {"budgets_tokens": counts} for a, counts in budgets.items() if counts != every}
    shared = {**recipe, "budgets_tokens": every}
    return f'''"""{says}{added}

Command:  moejax study --config=FILE{_source(recipe)}
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The study."""
    config = ConfigDict()
    config.name = "{name}"
    config.seed = 0
    config.models = {_written(models)}
    config.recipe = {_written(shared)}
    config.recipes = {_written(recipes)}
    return config
'''


def _source(recipe: Mapping[str, Any]) -> str:
    data = recipe.get("data", {})
    return "" if data.get("source") or data.get("mixture") else " --config.recipe.data.source=DATA"


def names_of(architectures: Sequence[Architecture]) -> list[str]:
    """Names by width and experts; different architectures of one such name are told apart by a number."""
    names: dict[Architecture, str] = {}
    taken: dict[str, int] = {}
    for architecture in architectures:
        if architecture not in names:
            plain = _name(architecture)
            taken[plain] = taken.get(plain, 0) + 1
            names[architecture] = plain if taken[plain] == 1 else f"{plain}-{taken[plain]}"
    return [names[architecture] for architecture in architectures]


def _name(a: Architecture) -> str:
    if not a.is_moe:
        return f"dense-{a.model_dim}x{a.num_layers}"
    shared = f"-{a.num_shared_experts}s" if a.num_shared_experts else ""
    return f"moe-{a.model_dim}x{a.num_layers}-{a.num_experts}e{a.top_k}{shared}"


def _settings(architecture: Architecture) -> dict[str, Any]:
    """What is not at its default."""
    settings = {}
    for f in dataclasses.fields(architecture):
        value = getattr(architecture, f.name)
        if value != f.default:
            settings[f.name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
    return settings


def _written(value: Any) -> str:
    return textwrap.indent(_nested(value), "    ").lstrip()


def _nested(value: Any) -> str:
    """A dictionary an entry a line, those inside it on one line where they fit."""
    if not isinstance(value, dict) or not value:
        return pprint.pformat(value, sort_dicts=False, underscore_numbers=True, compact=True, width=100)
    lines = []
    for name, one in value.items():
        flat = pprint.pformat(one, sort_dicts=False, underscore_numbers=True, width=10_000)
        lines.append(f"    {name!r}: {flat if len(flat) < 100 else textwrap.indent(_nested(one), '    ').lstrip()},")
    return "\n".join(["{", *lines, "}"])
