"""Who may talk to the explorer: pages that it served itself, under a name of this machine.

A web page from elsewhere can make a browser send requests to ports of this machine. The browser then names that page's
host (DNS rebinding) or its Origin (a request across sites), so both are checked before marimo sees a request or a
WebSocket. marimo itself answers every origin with ``access-control-allow-origin: *``; that is taken off.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

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
