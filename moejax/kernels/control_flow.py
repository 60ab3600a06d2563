"""Branch on a condition that nearly always holds, so that plans know which code of a step runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax


def cond_likely(holds: Array, likely: Callable[..., Any], rare: Callable[..., Any], *operands: Any) -> Any:
    """Return ``likely(*operands)`` if the condition holds, else ``rare(*operands)``.

    All conditions of a training's program are created here. In a compiled program, the true branch of a condition is
    therefore the one that counts (``moejax.plan.program_text``).
    """
    return lax.cond(holds, likely, rare, *operands)
