"""Report messages on stderr, separate from a command's result on stdout, and the progress of long work."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

from moejax.wording import one_line

ProgressCallback = Callable[[float, str], None]
"""``update(share, text)``: the finished share, and the current activity."""

CountCallback = Callable[[int, int], None]
"""``progress(done, total)``."""

StageCallback = Callable[[str, int, int], None]
"""``progress(stage, done, total)``: the current stage, and the finished part of the total."""


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print each line to stderr, or to ``file``.

    Line breaks and terminal control characters in names are printed as escapes. If the reader of stderr has exited
    (as in ``moejax train ... 2>&1 | head``), messages are discarded and the work continues.
    """
    text = "\n".join(one_line(str(line)) for line in lines)
    try:
        print(text, file=file or sys.stderr, flush=True)
    except BrokenPipeError:
        if file is not None:
            raise
        discard(sys.stderr)


_SAID: ContextVar[set[str] | None] = ContextVar("_SAID", default=None)


@contextlib.contextmanager
def each_note_once() -> Iterator[None]:
    """Make ``say_once`` print a line only once, because a command may read a table several times."""
    before = _SAID.set(set())
    try:
        yield
    finally:
        _SAID.reset(before)


def say_once(*lines: object) -> None:
    """Print the lines that this command has not yet printed to stderr; outside a command, print all lines."""
    said = _SAID.get()
    for line in map(str, lines):
        if said is None or line not in said:
            say(line)
        if said is not None:
            said.add(line)


def discard(stream: TextIO) -> None:
    """Redirect future and buffered output of ``stream`` to the null device."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
