"""How far the host may be ahead of its devices."""

from __future__ import annotations

from collections import deque

import jax
from jaxtyping import Array

MOST_AHEAD = 8
"""Steps that are asked for and not done. Of 32, XLA's client for CPUs waits for one before it launches the next: where
several devices wait for each other within a step, and each has a thread, it may wait for ever."""


class Pace:
    """Waits where a loop would ask for too many steps at once."""

    def __init__(self) -> None:
        self._asked: deque[Array] = deque()

    def after(self, loss: Array) -> None:
        """A step was asked for, of which ``loss`` will be a result."""
        self._asked.append(loss)
        if len(self._asked) > MOST_AHEAD:
            jax.block_until_ready(self._asked.popleft())
