"""``moejax COMMAND …`` and ``python -m moejax``: Ctrl-C and SIGTERM are one sentence from the first import on."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

from moejax.errors import OURS
from moejax.say import say


def command() -> NoReturn:
    """``moejax`` as a process of its own: run the command of ``sys.argv`` and end with its exit status.

    The process ends behind everything that Python does at the end of one: its threads have ended, what was registered
    with ``atexit`` has run, and what was printed is out. What would follow is left to the system: libraries' threads
    are still there (XLA's, TensorStore's, LLVM's, Arrow's), and those that meet what the interpreter and C++ take apart
    meanwhile end the process with a signal, in place of its status.
    """
    status: list[int] = []

    def end() -> None:
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(BrokenPipeError):
                    stream.flush()
        except (OSError, ValueError):
            return  # Python says what could not be printed, with a status of its own
        if status:
            os._exit(status[0])

    # Also once the command has returned: libraries' threads are still there.
    sys.unraisablehook = _ignored
    # The first that is registered is the last that runs.
    atexit.register(end)
    try:
        status.append(main())
    except SystemExit as error:
        status += [error.code or 0] if isinstance(error.code, int | None) else []
        raise
    except Exception as error:
        # What is no UserError is our mistake, whatever raised it.
        traceback.print_exception(error)
        say(f"moejax: {OURS}")
        status.append(1)
    sys.exit(status[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    before, sys.unraisablehook = sys.unraisablehook, _ignored
    try:
        with _until_terminated():
            from moejax.cli.command_line import run

            return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        say("", "Stopped. What was written is kept; the same command goes on, or begins again.")
        return 130
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _until_terminated() -> Iterator[None]:
    """SIGTERM ends a command at once, in words; a training has a handler of its own while it has something to save."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminated(number: int, frame: FrameType | None) -> None:
    # Not print: the signal may have come in the middle of another one.
    os.write(2, b"\nStopped by SIGTERM. What was written is kept; the same command goes on, or begins again.\n")
    os._exit(75)


def _ignored(unraisable: sys.UnraisableHookArgs) -> None:
    """Ctrl-C again, a moment later, where Python drops it: JAX has a callback in the garbage collector.

    Where one of Orbax's reads or writes fails, it closes its event loop and drops the others: those of TensorStore that
    end later find it closed, and reads fail once more as they are collected. The first failure is reported.
    """
    if str(unraisable.exc_value).startswith(("Event loop is closed", "Encountered error while reading array index")):
        return None
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        return sys.__unraisablehook__(unraisable)
    again = threading.Timer(0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    again.daemon = True
    return again.start()


if __name__ == "__main__":
    command()
