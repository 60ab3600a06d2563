"""Branch on a condition that nearly always holds, and mark the likely branch for plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array, lax


def cond_likely(holds: Array, likely: Callable[..., Any], rare: Callable[..., Any], *operands: Any) -> Any:
    """Return ``likely(*operands)`` if the condition holds, else ``rare(*operands)``.

    Training programs create all conditionals here. So plans count the true branch of every conditional in a compiled
    program (``moejax.plan.program_text``).
    """
    return lax.cond(holds, likely, rare, *operands)
