"""Mark conditions of a training's program that nearly always hold, so that plans know the code of every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax


def usually(holds: Array, usual: Callable[..., Any], rare: Callable[..., Any], *operands: Any) -> Any:
    """Return ``usual(*operands)`` if the condition holds, else ``rare(*operands)``.

    All conditions of a training's program are created here. In a compiled program, the true branch of a condition is
    therefore the one that counts (``moejax.train.program_text``).
    """
    return lax.cond(holds, usual, rare, *operands)
