"""End a training whose devices hang: a step that never finishes would be waited for without an end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

TICK_SECONDS = 1.0


class HangWatch:
    """A thread that ends the process once a step has been waited for longer than ``seconds``; 0 never ends it.

    Time counts while the host waits for a step and does nothing else: compilation, evaluation and saving are left out.
    It is counted in ticks of the thread, so that the time for which a machine slept or the process was stopped is left
    out too.
    """

    def __init__(self, seconds: float, name: str, end: Callable[[str], None] | None = None):
        self._seconds, self._name, self._end = seconds, name, end or _end
        self._waits = self._counted = 0
        self._is_waiting, self._over, self._waited = False, threading.Event(), 0.0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as time in which one step does not finish."""
        self._waits += 1
        self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False

    def tick(self, seconds: float) -> None:
        """Count a tick, and end the process if the step that is waited for has taken too long."""
        if self._counted != self._waits or not self._is_waiting:
            self._counted, self._waited = self._waits, 0.0
            return
        self._waited += seconds
        if self._waited >= self._seconds > 0:
            self._end(
                f"No step of {self._name} finished for {self._seconds:g} seconds (recipe.hang_seconds): a device, or "
                f"the link to another one, hangs. What was saved is whole, and the same command goes on."
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
    # No exception: the main thread is in a library that waits. A scheduler starts a process of this status again.
    os.write(2, f"\nmoejax: {sentence}\n".encode())
    os._exit(os.EX_TEMPFAIL)
