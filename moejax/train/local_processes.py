"""Run a training in several processes: start them on this machine, and end a process that fails alone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from jax.errors import JaxRuntimeError

from moejax.errors import OURS, CoordinatedError, UserError
from moejax.say import say
from moejax.train.processes import ProcessGroup
from moejax.wording import says, told

AGAIN = 75
"""Exit status of an interrupted training that resumes at the next start (``EX_TEMPFAIL`` of sysexits.h)."""


GRACE_SECONDS = 15.0
"""Time for the other processes to end after one has failed."""


_POLL_SECONDS = 0.2


def run_here(words: Sequence[str], processes: int) -> int:
    """Run ``moejax train WORDS`` in ``processes`` processes and return their status. Signals are forwarded to all of
    them.
    """
    coordinator = f"127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "moejax", "train", *words, "--processes", str(processes)]
    command += ["--coordinator", coordinator, "--parent", str(os.getpid()), "--process"]
    started = [subprocess.Popen([*command, str(number)], start_new_session=True) for number in range(processes)]

    def forward(number: int, frame: FrameType | None) -> None:
        for process in started:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _wait(started)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(started: list[subprocess.Popen[bytes]]) -> int:
    deadline = float("inf")
    while any(process.poll() is None for process in started) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        if any(process.poll() for process in started):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
    codes = [process.poll() for process in started]
    killed = [(number, -code) for number, code in enumerate(codes) if code is not None and code < 0]
    said = [code for code in codes if code is not None and code > 0]
    if said:
        return said[0]
    if killed:
        number, by = killed[0]
        say(
            f"moejax: process {number} of {len(started)} was killed by {signal.Signals(by).name}; the same "
            f"command resumes from the newest checkpoint."
        )
        return AGAIN
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def own_stdout() -> Iterator[None]:
    """Redirect output of libraries from stdout to stderr, such as Gloo's messages at each connection."""
    sys.stdout.flush()
    before, where = sys.stdout, os.dup(1)
    os.dup2(2, 1)
    try:
        with open(where, "w", encoding="utf-8", closefd=False) as sys.stdout:
            yield
    finally:
        sys.stdout = before
        os.dup2(where, 1)
        os.close(where)


@contextlib.contextmanager
def ending_alone(group: ProcessGroup) -> Iterator[None]:
    """End a process at once if it alone fails among several, since the others no longer respond."""
    try:
        yield
    except CoordinatedError:
        raise
    except Exception as error:
        if group.count == 1:
            raise
        who = f"process {group.index} of {group.count}"
        if isinstance(error, JaxRuntimeError):
            lost = f"{who} has lost the others ({says('JAX', error)})"
            say(f"moejax: {lost}. The same command resumes from the newest checkpoint.")
            status = AGAIN
        elif isinstance(error, UserError):
            say(f"moejax: {who}: {told(error)}")
            status = 2
        else:
            traceback.print_exception(error)
            say(f"moejax: {who}: {OURS}")
            status = 1
        sys.stderr.flush()
        os._exit(status)
