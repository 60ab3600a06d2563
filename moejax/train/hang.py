"""End a training whose devices hang: otherwise the process would wait forever for a step."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

TICK_SECONDS = 1.0


class HangWatch:
    """A thread that ends the process if a step takes longer than ``seconds``; 0 never ends it.

    Time counts only while the host waits for a step: compilation, evaluation and saving are excluded. It is counted in
    ticks of the thread. This excludes time during which the machine slept or the process was suspended.
    """

    def __init__(self, seconds: float, name: str, end: Callable[[str], None] | None = None):
        self._seconds, self._name, self._end = seconds, name, end or _end
        self._waits = self._counted = 0
        self._is_waiting, self._over, self._waited = False, threading.Event(), 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside the context as time spent waiting for one step."""
        self._waits += 1
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def tick(self, seconds: float) -> None:
        """Count a tick, and end the process if the current step has taken too long."""
        if self._counted != self._waits or not self._is_waiting:
            self._counted, self._waited = self._waits, 0.0
            return
        self._waited += seconds
        if self._waited >= self._seconds > 0:
            self._end(
                f"No step of {self._name} finished for {self._seconds:g} seconds (recipe.hang_seconds): a device, or "
                f"the link to another one, hangs, or another host waits for its data. What was saved is whole, and the "
                f"same command goes on."
            )

    def __enter__(self) -> HangWatch:
        if self._seconds:
            threading.Thread(target=self._run, name="hang", daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()

    def _run(self) -> None:
        seconds = min(TICK_SECONDS, self._seconds / 4)
        while not self._over.wait(seconds):
            self.tick(seconds)


def _end(sentence: str) -> None:
    # An exception would not work: the main thread is waiting inside a library. A scheduler restarts a process that ends
    # with this status.
    os.write(2, f"\nmoejax: {sentence}\n".encode())
    os._exit(os.EX_TEMPFAIL)
