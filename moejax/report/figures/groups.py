"""Group runs by expansion (total / active parameters), with the same names and colors in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moejax.quantities import format
from moejax.report.figures.style import classes

CLASSES = 5
"""Maximum number of groups."""
EQUAL = 0.02
"""Relative difference within which values count as equal."""
DENSE = 1.02
"""Largest expansion of a model that is labeled dense."""
MEANING = "Expansion is total / active parameters."
"""Caption sentence about the groups' names."""


@dataclass(frozen=True)
class ExpansionGroup:
    """Runs with about the same expansion."""

    label: str
    color: str
    rows: np.ndarray
    """Indices of the group's runs."""
    middle: np.ndarray
    """Indices of the runs of its middle level."""


def groups_of(expansion: np.ndarray) -> list[ExpansionGroup]:
    """Return up to ``CLASSES`` groups of runs in ascending order of expansion.

    Dense runs form their own group. Runs of unknown expansion are in no group.
    """
    dense, mixed = (np.unique(expansion[kept]) for kept in (expansion <= DENSE, expansion > DENSE))
    parts = split_into_classes(mixed, CLASSES - bool(dense.size))
    if dense.size:
        parts = [[dense], *parts]
    groups = []
    for own, color in zip(parts, classes(len(parts)), strict=True):
        middle = own[len(own) // 2]
        rows, inside = (
            np.flatnonzero((expansion >= low) & (expansion <= high))
            for low, high in ((own[0][0], own[-1][-1]), (middle[0], middle[-1]))
        )
        groups.append(ExpansionGroup(label_of(own), color, rows, inside))
    return groups


def label_of(levels: Sequence[np.ndarray]) -> str:
    """Return the name of a group: dense, expansion 16, or expansion 8 to 16."""
    return "dense" if levels[-1][-1] <= DENSE else f"expansion {range_of(levels)}"


def split_into_classes(values: np.ndarray, most: int = CLASSES) -> list[list[np.ndarray]]:
    """Split ascending values into up to ``most`` lists of levels.

    Neighboring values form a level if they differ by at most ``EQUAL``: a nominal 6 may be 5.99 or 6.01.
    """
    levels = np.split(values, np.flatnonzero(np.diff(values) > EQUAL * np.abs(values[1:])) + 1)
    parts = np.array_split(np.arange(len(levels)), min(most, len(levels)))
    return [levels[part[0] : part[-1] + 1] for part in parts] if values.size else []


def range_of(levels: Sequence[np.ndarray]) -> str:
    """Return the medians of a class's first and last level, as text."""
    return " to ".join(dict.fromkeys(format(float(np.median(level)), 3) for level in (levels[0], levels[-1])))
