"""Being asked to stop: a training takes its step to the end, saves, and can be gone on with."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from jax.experimental import multihost_utils


class Stopped(Exception):
    """A training was asked to stop, and what it had done is saved."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number
        """Of the signal."""


class Stop:
    """Whether a signal has asked a training to stop. In many processes, all stop after the same step."""

    def __init__(self, processes: int = 1):
        self._many = processes > 1
        self._steps = 0
        self._between_steps = False
        self.number = 0
        """Of the first signal that came."""

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """While steps are taken, a signal waits until ``after_step`` asks for it; else there is nothing to be saved."""
        self._between_steps = True
        try:
            yield
        finally:
            self._between_steps = False

    def after_step(self) -> bool:
        """Whether to save and stop now. Every process asks after each of its steps."""
        self._steps += 1
        if not self._many:
            return self.number > 0
        # A signal that one process got reaches the others, and all agree on the step.
        reached = multihost_utils.reached_preemption_sync_point(self._steps)
        self.number = self.number or (signal.SIGTERM if reached else 0)
        return reached

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A handler of signals; the second Ctrl-C acts at once, while schedulers send SIGTERM more than once."""
        if number == signal.SIGTERM and self.number:
            return
        self.number = number
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        if self._many:
            # The processes agree by what JAX makes of SIGTERM.
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self._between_steps:
            raise Stopped(number)


@contextlib.contextmanager
def stop_on_signals(processes: int = 1) -> Iterator[Stop]:
    """Yields a ``Stop`` that SIGINT and SIGTERM set; in a thread that is not the main one, nothing does."""
    stop = Stop(processes)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # Of several processes, JAX watches SIGTERM itself.
    numbers = [signal.SIGINT] if processes > 1 else [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
