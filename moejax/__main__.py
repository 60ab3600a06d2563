"""``moejax COMMAND …`` and ``python -m moejax``: Ctrl-C is one sentence from the first import on."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    before, sys.unraisablehook = sys.unraisablehook, _ignored
    try:
        from moejax.cli.command_line import run

        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("\nStopped. What was written is kept; the same command goes on, or begins again.", file=sys.stderr)
        return 130
    finally:
        sys.unraisablehook = before


def _ignored(unraisable: sys.UnraisableHookArgs) -> None:
    """Ctrl-C again, a moment later, where Python drops it: JAX has a callback in the garbage collector."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        return sys.__unraisablehook__(unraisable)
    import signal
    import threading

    again = threading.Timer(0.02, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    again.daemon = True
    return again.start()


if __name__ == "__main__":
    sys.exit(main())
