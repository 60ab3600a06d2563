"""The explorer on this machine: a port, marimo's server on it, and a browser."""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib.util
import os
import socket
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from moejax.errors import UserError
from moejax.report.explorer.same_machine import same_machine
from moejax.wording import says

SOURCE = "MOEJAX_EXPLORE"
"""The environment variable that tells the page what was given."""
HOST = "127.0.0.1"
APP = Path(__file__).parent / "app.py"


def check_marimo() -> None:
    """Raise ``UserError``, naming the extra, if marimo is not installed."""
    if importlib.util.find_spec("marimo") is None:
        raise UserError(
            "moejax explore needs the package marimo, which is not installed; pip install 'moejax[explore]'."
        )


def listen(port: int) -> socket.socket:
    """A socket that accepts on a port of this machine; 0 for any that is free.

    Raises:
      UserError: the port is in use, or may not be had.
    """
    if not 0 <= port < 2**16:
        raise UserError(f"--port is {port}; a port is a number from 0 (any free one) to 65535.")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({says('the system', error)})"
        raise UserError(f"Port {port} {why}; give another with --port, or --port 0 for any that is free.") from error
    found.listen()
    return found


def serve(source: str, listening: socket.socket, *, browser: bool, say: Callable[[str], None]) -> NoReturn:
    """Serve the page until Ctrl-C, with which the process ends; where there is a display, a browser opens it."""
    import marimo  # type: ignore[import-not-found]
    import uvicorn  # type: ignore[import-not-found]

    os.environ[SOURCE] = source
    address = f"http://{HOST}:{listening.getsockname()[1]}/"
    page: Any = marimo.create_asgi_app(quiet=True, include_code=False).with_app(path="", root=str(APP)).build()
    server = uvicorn.Server(uvicorn.Config(same_machine(page), log_level="warning", timeout_graceful_shutdown=1))
    say(f"Exploring at {address} (Ctrl-C ends it)")
    if browser and not (has_display() and webbrowser.open(address)):
        say("No browser was opened: there is no display here. Open the address yourself; from another machine,")
        say(f"  ssh -L {listening.getsockname()[1]}:{HOST}:{listening.getsockname()[1]} THIS-MACHINE")
    # What is here by now stays: a collection that walks through all of it stops an interaction for .15 s.
    gc.collect()
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
    say("Ended.")
    # marimo's threads of open pages wait for these to come back.
    os._exit(0)


def has_display() -> bool:
    """Whether a browser would have somewhere to appear: on Linux, a browser of the terminal must not take it over."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
