"""Axes of an array regrouped by name, as ``"(heads head_dim) embed -> embed heads head_dim"``."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np


def rearrange(array: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
    """The same numbers in another layout. A group in brackets is one axis, its first name the slowest.

    ``()`` is an axis of size 1. Swapping the sides of the arrow gives the inverse.
    """
    left, right = (axes(side) for side in pattern.split("->"))
    names = [name for group in left for name in group]
    assert sorted(names) == sorted(name for group in right for name in group), pattern
    apart = array.reshape([sizes[name] for name in names])
    order = [names.index(name) for group in right for name in group]
    return apart.transpose(order).reshape([math.prod(sizes[name] for name in group) for group in right])


def axes(side: str) -> list[list[str]]:
    """The groups of names of one side of a pattern."""
    groups, inside = [], False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word in "()":
            inside = word == "("
            groups += [[]] if inside else []
        elif inside:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups
