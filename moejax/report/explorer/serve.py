"""The explorer on this machine: a port, marimo's server on it, and a browser; it talks only to pages that it served
itself, under a name of this machine.

A web page from elsewhere can make a browser send requests to ports of this machine. The browser then names that page's
host (DNS rebinding) or its Origin (a request across sites), so both are checked before marimo sees a request or a
WebSocket. marimo itself answers every origin with ``access-control-allow-origin: *``; that is taken off.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib.util
import ipaddress
import os
import socket
import sys
import webbrowser
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from moejax.errors import UserError
from moejax.wording import says

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

REFUSED = b"The explorer answers pages of its own address on this machine alone.\n"
POLICY_VIOLATED = 1008
"""The code with which a WebSocket is closed (RFC 6455, section 7.4.1)."""


def same_machine(application: Application) -> Application:
    """The ASGI application, behind a check of Host and Origin of every request and WebSocket.

    A request passes if its one Host is a loopback name (``localhost``, ``127.0.0.1``, ``[::1]``) and its Origin, where
    it has one, is ``http://`` and that same Host. A WebSocket must have an Origin, as browsers always send one.
    """

    async def guarded(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await application(scope, receive, send)
        if not is_allowed(scope["headers"], websocket=scope["type"] == "websocket"):
            return await _refuse(scope, receive, send)

        async def without_cors(message: Message) -> None:
            if "headers" in message:
                kept = [pair for pair in message["headers"] if not pair[0].lower().startswith(b"access-control-")]
                message = {**message, "headers": kept}
            await send(message)

        return await application(scope, receive, without_cors)

    return guarded


def is_allowed(headers: Iterable[tuple[bytes, bytes]], *, websocket: bool) -> bool:
    """Whether headers are those of a page of this machine's own."""
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value.decode("latin-1"))
    hosts, origins = found.get(b"host", []), found.get(b"origin", [])
    if len(hosts) != 1 or len(origins) > 1 or not _is_loopback(hosts[0]):
        return False
    if not origins:
        # A page elsewhere may still make a browser load something here; browsers say so.
        return not websocket and found.get(b"sec-fetch-site", ["none"])[0] in ("none", "same-origin")
    return origins[0].lower() == f"http://{hosts[0].lower()}"


def _is_loopback(host: str) -> bool:
    try:
        parts = urlsplit(f"http://{host}")
        name, rest = parts.hostname or "", (parts.username, parts.path, parts.query, parts.fragment)
        _ = parts.port
    except ValueError:
        return False
    if any(rest):
        return False
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def _refuse(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": POLICY_VIOLATED})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(REFUSED)).encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})


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
