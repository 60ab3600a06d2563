"""Implement ``moejax train --processes N``: run a training in N local processes, started and ended together."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from moejax.say import say

AGAIN = 75
"""Exit status of an interrupted training that resumes at the next start (``EX_TEMPFAIL`` of sysexits.h)."""

GRACE_SECONDS = 15.0
"""Time for the other processes to end after one has failed."""

_POLL_SECONDS = 0.2


def run(arguments: argparse.Namespace) -> int:
    """Start all processes, and return their status."""
    return run_here(arguments.command_line, arguments.processes)


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
            f"moejax: process {number} of {len(started)} was killed by {signal.Signals(by).name}; the same command "
            f"goes on from the newest checkpoint."
        )
        return AGAIN
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
