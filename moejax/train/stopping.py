"""Being asked to stop: a training takes its step to the end, saves, and can be gone on with."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from jax.experimental import multihost_utils


class Stopped(Exception):
    """A training was asked to stop, and what it had done is saved."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number
        """Of the signal."""


def exit_status(number: int) -> int:
    """Of a process that a signal stopped: 130 for Ctrl-C; 75, to be started again, for a scheduler's SIGTERM."""
    return 130 if number == signal.SIGINT else os.EX_TEMPFAIL


class Stop:
    """Whether a signal has asked a training to stop. In many processes, all stop after the same step."""

    def __init__(self, processes: int = 1):
        self._many = processes > 1
        self.steps = 0
        """Taken since the process was started."""
        self._endings: list[Callable[[int], str]] = []
        self._between_steps = False
        self._agreed = False
        self.number = 0
        """Of the first signal that came."""

    @property
    def has_stepped(self) -> bool:
        """Whether this process has taken a step."""
        return self.steps > 0

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """While steps are taken and saved, a signal waits until ``after_step`` asks for it, or until this ends.

        Raises:
          Stopped: a signal came after the last step, which is saved.
        """
        self._between_steps = True
        try:
            yield
        finally:
            self._between_steps = False
        if self.number and not self._many:
            raise Stopped(self.number)

    @contextlib.contextmanager
    def ending(self, end: Callable[[int], str]) -> Iterator[None]:
        """While this lasts, ``end`` is called with a signal's number before the process ends outside of ``stepping``.

        It notes that the training is interrupted, and returns a sentence for the person.
        """
        self._endings.append(end)
        try:
            yield
        finally:
            self._endings.remove(end)

    def after_step(self) -> bool:
        """Whether to save and stop now. Every process asks after each of its steps."""
        self.steps += 1
        if not self._many:
            return self.number > 0
        # A signal that one process got reaches the others, and all agree on the step.
        # JAX says so after one step alone, which may be the last of a phase, where nothing is left to stop.
        self._agreed = self._agreed or multihost_utils.reached_preemption_sync_point(self.steps)
        self.number = self.number or (signal.SIGTERM if self._agreed else 0)
        return self._agreed

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
            self._end(number)

    def _end(self, number: int) -> NoReturn:
        """End the process here, where there is nothing to be saved.

        An exception would come up in whatever frame is running: a compiler's, or a callback of a library, which loses
        it, goes on without what it was computing, or fails in a way of its own.
        """
        said = "Stopped. What was written is kept; the same command goes on, or begins again."
        for end in self._endings:
            with contextlib.suppress(Exception):
                said = end(number)
        with contextlib.suppress(OSError):
            # Not print: the signal may have come in the middle of one. A progress bar has hidden the cursor.
            os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}\nmoejax: {said}\n".encode())
        os._exit(exit_status(number))


_SHOW_CURSOR = "\x1b[?25h"


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
