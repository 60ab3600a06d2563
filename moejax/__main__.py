"""Run ``moejax COMMAND …`` and ``python -m moejax``, and report Ctrl-C and SIGTERM in one sentence from the first
import on.
"""

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
    """Run the command of ``sys.argv`` as the whole process, and exit with its status.

    The process exits after Python's own finalization: threads have ended, ``atexit`` callbacks have run, and streams
    are flushed. It then skips the finalization of C++ libraries. Their threads (XLA, TensorStore, LLVM, Arrow) still
    run and could crash the process with a signal while the interpreter is torn down.
    """
    status: list[int] = []

    def end() -> None:
        try:
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(BrokenPipeError):
                    stream.flush()
        except (OSError, ValueError):
            return  # Python reports the output error with a status of its own
        if status:
            os._exit(status[0])

    # Library threads still run after the command has returned.
    sys.unraisablehook = _ignored
    # atexit runs callbacks in reverse order, so the first registered one runs last.
    atexit.register(end)
    try:
        status.append(main())
    except SystemExit as error:
        status += [error.code or 0] if isinstance(error.code, int | None) else []
        raise
    except Exception as error:
        # Any exception except UserError is a bug in moejax, wherever it was raised.
        traceback.print_exception(error)
        say(f"moejax: {OURS}")
        status.append(1)
    sys.exit(status[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    before, sys.unraisablehook = sys.unraisablehook, _ignored
    words = sys.argv[1:] if argv is None else argv
    try:
        with _until_terminated(words):
            from moejax.cli.command_line import run

            return run(words)
    except KeyboardInterrupt:
        say("", f"Stopped{_consequence(words)}")
        return 130
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _until_terminated(words: Sequence[str]) -> Iterator[None]:
    """Exit at once with a message on SIGTERM, and on Ctrl-C during an import.

    Elsewhere, Ctrl-C raises ``KeyboardInterrupt``. Within the initialization of a native library such as jaxlib, this
    exception would end in an ``ImportError`` or crash the process. A training run with something to save installs its
    own handlers.
    """
    defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    ours = {number for number, default in defaults.items() if signal.getsignal(number) == default}
    if threading.current_thread() is not threading.main_thread() or signal.SIGTERM not in ours:
        yield
        return

    def stopped(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and not _importing(frame):
            raise KeyboardInterrupt
        how, status = (" by SIGTERM", 75) if number == signal.SIGTERM else ("", 130)
        try:
            if (place := sys.modules.get("moejax.cli.out_folder")) and hasattr(place, "remove_empty_folders"):
                place.remove_empty_folders()
            # print is not safe here, since the signal may interrupt another print.
            os.write(2, f"\nStopped{how}{_consequence(words)}\n".encode())
        finally:
            os._exit(status)

    for number in ours:
        signal.signal(number, stopped)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, defaults[number])


def _importing(frame: FrameType | None) -> bool:
    """Return whether an import within ``main`` has led to this frame."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


RESUMED = ("train", "study", "data", "launch")
"""Commands that continue from the files that an earlier, stopped start has written."""


def _consequence(words: Sequence[str]) -> str:
    """Return the end of a sentence about a stopped command."""
    if words and words[0] in RESUMED:
        return ". Files written so far are kept; run the same command again to continue."
    return ". The result is not complete; run the same command again to start over."


def _ignored(unraisable: sys.UnraisableHookArgs) -> None:
    """Handle an exception that Python drops (``sys.unraisablehook``).

    Ctrl-C that is dropped, for example in JAX's garbage-collection callback, is sent again shortly after. Follow-up
    errors of checkpoint operations are ignored: if an Orbax read or write fails, Orbax closes its event loop and
    abandons all other operations. TensorStore operations that finish later find the loop closed, and failed reads raise
    again when they are garbage-collected. The first failure is reported elsewhere.
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
