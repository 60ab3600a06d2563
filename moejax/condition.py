"""A condition of a training's program that nearly always holds, so that plans can tell what runs in every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax


def usually(holds: Array, usual: Callable[..., Any], rare: Callable[..., Any], *operands: Any) -> Any:
    """``usual(*operands)`` where it holds, else ``rare(*operands)``.

    Conditions of a training's program are all made here: of a compiled program's conditions, the branch for true is
    then the one that counts (``moejax.train.program_text``).
    """
    return lax.cond(holds, usual, rare, *operands)
