"""Stop a training run. A signal stops it after the current step has been saved; hanging devices stop it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from jax.experimental import multihost_utils

TICK_SECONDS = 1.0
_RESUMES = "run the same command again to resume."


class Stopped(Exception):
    """Exception for a training run that stopped on request after saving its work."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number
        """Number of the signal."""


def exit_status(number: int) -> int:
    """Return the exit status of a process stopped by a signal: 130 for Ctrl-C, 75 (restart) for a scheduler's
    SIGTERM."""
    return 130 if number == signal.SIGINT else os.EX_TEMPFAIL


class Stop:
    """Stop request of a training run, set by a signal. With many processes, all stop after the same step."""

    def __init__(self, processes: int = 1):
        self._many = processes > 1
        self.steps = 0
        """Number of steps run since the process started."""
        self._between_steps = False
        self._agreed = False
        self.number = 0
        """Number of the received signal; 0 if none was received."""
        self.before_exit: list[Callable[[int], None]] = []
        """Functions that record the signal's number before a signal ends the process at once."""

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Defer signals while steps run and are saved, until ``after_step`` checks for them or the context ends.

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
        # A signal received by one process reaches the others, and all agree on the step. JAX may report the signal one
        # step late, and that step may be the last of a phase.
        self._agreed = self._agreed or multihost_utils.reached_preemption_sync_point(self.steps)
        self.number = self.number or (signal.SIGTERM if self._agreed else 0)
        return self._agreed

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. The first signal determines the exit status. A second Ctrl-C ends the process immediately;
        repeated SIGTERMs are ignored, because schedulers send several."""
        if number == signal.SIGTERM and self.number:
            return
        self.number = self.number or number
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        if self._many:
            # The processes agree through JAX's handler of SIGTERM.
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self._between_steps:
            # Nothing needs to be saved, so exit directly: an exception would be raised in the running frame, such as a
            # compiler's, which may swallow it. Call os.write, because print is not reentrant. Show the cursor, because
            # a progress bar may have hidden it.
            with contextlib.suppress(OSError):
                show_cursor = "\x1b[?25h" if os.isatty(2) else ""
                when = "while no step was running" if self.steps else "before a step was taken"
                os.write(2, f"{show_cursor}\nmoejax: Stopped {when}; {_RESUMES}\n".encode())
            try:
                for record in self.before_exit:
                    record(self.number)
            finally:
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


class HangWatch:
    """A watchdog thread that ends the process if a step takes longer than ``seconds``; 0 disables it. Without a
    watchdog, a process whose devices hang would wait forever.

    Time counts only while the host waits for a step: compilation, evaluation and saving are excluded. The thread counts
    its own ticks, which excludes time during which the machine slept or the process was suspended.
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
                f"No step of {self._name} finished for {self._seconds:g} seconds (recipe.hang_seconds). A device or "
                "a link between devices hangs, or another host is still reading its data. Checkpoints are intact; run "
                f"the same command again to resume."
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
