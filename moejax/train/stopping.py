"""Handle stop signals: a training finishes its step, saves, and can be resumed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from jax.experimental import multihost_utils

_STOPPED = "Stopped while no step was taken; the same command resumes from what was saved."


class Stopped(Exception):
    """A training was asked to stop, and its work is saved."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number
        """Number of the signal."""


def exit_status(number: int) -> int:
    """Return the exit status of a process stopped by a signal: 130 for Ctrl-C, 75 (restart) for a scheduler's
    SIGTERM."""
    return 130 if number == signal.SIGINT else os.EX_TEMPFAIL


class Stop:
    """Stop request of a training, set by a signal. With many processes, all stop after the same step."""

    def __init__(self, processes: int = 1):
        self._many = processes > 1
        self.steps = 0
        """Number of steps taken since the process started."""
        self._between_steps = False
        self._agreed = False
        self.number = 0
        """Number of the signal received; 0 without one."""

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Defer signals while steps are taken and saved, until ``after_step`` checks for them or the context ends.

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

    def after_step(self) -> bool:
        """Return whether to save and stop now. Every process calls this after each of its steps."""
        self.steps += 1
        if not self._many:
            return self.number > 0
        # A signal received by one process reaches the others, and all agree on the step. JAX reports it after only one
        # step, which may be the last of a phase with nothing left to stop.
        self._agreed = self._agreed or multihost_utils.reached_preemption_sync_point(self.steps)
        self.number = self.number or (signal.SIGTERM if self._agreed else 0)
        return self._agreed

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; the first one decides the exit status. A second Ctrl-C acts immediately; repeated SIGTERMs
        are ignored, because schedulers send several."""
        if number == signal.SIGTERM and self.number:
            return
        self.number = self.number or number
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        if self._many:
            # The processes agree through JAX's handler of SIGTERM.
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self._between_steps:
            # Nothing needs to be saved. An exception would be raised in whatever frame is running, such as a
            # compiler's, which may swallow it. print is not reentrant. A progress bar has hidden the cursor.
            with contextlib.suppress(OSError):
                show_cursor = "\x1b[?25h" if os.isatty(2) else ""
                os.write(2, f"{show_cursor}\nmoejax: {_STOPPED}\n".encode())
            os._exit(exit_status(self.number))


@contextlib.contextmanager
def stop_on_signals(processes: int = 1) -> Iterator[Stop]:
    """Yield a ``Stop`` that SIGINT and SIGTERM set; outside of the main thread, signals do not set it."""
    stop = Stop(processes)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # With several processes, JAX handles SIGTERM itself.
    numbers = [signal.SIGINT] if processes > 1 else [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
