"""Encode token positions in attention, by rotating queries and keys or by distance penalties on scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int

from moejax.architecture import Architecture
from moejax.model.rope import apply_rope


class Positions(NamedTuple):
    """A kind of position encoding: its effect on queries and keys, and on scores."""

    apply: Callable[[Array, Array, Architecture], Array]
    """``apply(x, positions, architecture)`` for queries and keys."""
    slopes: Callable[[int], Float[np.ndarray, " heads"] | None]
    """Score penalty of each head per token of distance; None for none."""


def alibi_slopes(heads: int) -> Float[np.ndarray, " heads"]:
    """Return 2^(-8i/heads), i from 1; between powers of two, every other slope of the next one (Press et al., 2022)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    if power < heads:
        between = 2.0 ** (-4.0 * np.arange(1, 2 * (heads - power), 2) / power)
        slopes = np.concatenate([slopes, between])
    return slopes.astype(np.float32)


def _as_it_is(x: Float[Array, "*shape"], positions: Int[Array, " length"], architecture: Architecture) -> Array:
    return x


def _none(heads: int) -> None:
    return None


POSITIONS = {
    "rope": Positions(apply=apply_rope, slopes=_none),
    "alibi": Positions(apply=_as_it_is, slopes=alibi_slopes),
    "none": Positions(apply=_as_it_is, slopes=_none),
}
"""Position encodings by ``Architecture.positions``."""
