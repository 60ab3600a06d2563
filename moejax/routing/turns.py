"""Work that is sized for what usually comes, and done again for the rest where more comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

Turn = Callable[..., Array]
"""``turn(x, *arguments, number)``: what one turn adds to the result, which is shaped as ``x``."""


def in_turns(
    turn: Turn, needed: Int[Array, ""], room: int, most: int, x: Float[Array, "tokens model"], *arguments: Any
) -> Float[Array, "tokens model"]:
    """The sum of as many turns of ``room`` rows as serve ``needed`` rows, which are at most ``most``.

    The first turn always runs. The others are behind a condition, and recompute rather than keep, so that a program
    holds no more than one turn needs.
    """
    first = turn(x, *arguments, 0)
    turns = -(-most // room)
    if turns == 1:
        return first

    def others(x: Array, *arguments: Any) -> Array:
        def add(total: Array, number: Array) -> tuple[Array, None]:
            return total + jax.checkpoint(turn)(x, *arguments, number).astype(total.dtype), None

        numbers = jnp.arange(1, turns, dtype=jnp.int32)
        return lax.scan(add, jnp.zeros(x.shape, jnp.float32), numbers)[0].astype(x.dtype)

    return first + lax.cond(needed > room, others, lambda x, *_: jnp.zeros_like(x), x, *arguments)
