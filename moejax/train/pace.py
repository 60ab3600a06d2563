"""How far the host may be ahead of its devices."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import jax
from jaxtyping import Array

from moejax.platform import platform

MOST_AHEAD = 8
"""Steps that are asked for and not done. Of 32, XLA's client for CPUs waits for one before it launches the next: where
several devices wait for each other within a step, and each has a thread, it may wait for ever."""
MUCH_MEMORY_BYTES = 2**28
"""Working memory of a step on a CPU above which the next one is asked for only when this one has given its memory back.
The client says that a step is done before it does that, and a step that waits for it begins with as much again."""
GIVING_BACK_SECONDS = 0.005


class Pace:
    """Waits where a loop would ask for too many steps at once; ``steps`` are the compiled programs it takes."""

    def __init__(self, steps: Iterable[Any] = ()) -> None:
        self._asked: deque[Array] = deque()
        self._one_by_one = platform() == "cpu" and max(map(_working_bytes, steps), default=0) > MUCH_MEMORY_BYTES

    def after(self, loss: Array) -> None:
        """A step was asked for, of which ``loss`` will be a result."""
        if self._one_by_one:
            jax.block_until_ready(loss)
            time.sleep(GIVING_BACK_SECONDS)
            return
        self._asked.append(loss)
        if len(self._asked) > MOST_AHEAD:
            jax.block_until_ready(self._asked.popleft())


def _working_bytes(step: Any) -> int:
    return step.memory_analysis().temp_size_in_bytes
