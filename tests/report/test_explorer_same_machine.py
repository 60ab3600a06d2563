"""The explorer answers its own pages on this machine, and nobody else's."""

import asyncio
import base64
import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys

import pytest

from moejax.report.explorer.serve import is_allowed, same_machine

HERE = "127.0.0.1:2718"
ALLOWED = [
    ({"host": HERE}, False),
    ({"host": "localhost:2718"}, False),
    ({"host": "LOCALHOST:2718", "origin": "http://localhost:2718"}, False),
    ({"host": "[::1]:2718", "origin": "http://[::1]:2718"}, True),
    ({"host": HERE, "origin": f"http://{HERE}"}, True),
    ({"host": HERE, "sec-fetch-site": "same-origin"}, False),
]
FOREIGN = [
    ({}, False),
    ({"host": "evil.example:2718"}, False),
    ({"host": "127.0.0.1.evil.example:2718"}, False),
    ({"host": "localhost@evil.example"}, False),
    ({"host": "evil.example/localhost"}, False),
    ({"host": "192.168.1.7:2718"}, False),
    ({"host": "0.0.0.0:2718"}, False),
    ({"host": "localhost:port"}, False),
    ({"host": HERE, "origin": "http://evil.example"}, False),
    ({"host": HERE, "origin": "http://127.0.0.1:8000"}, False),
    ({"host": HERE, "origin": f"https://{HERE}"}, False),
    ({"host": HERE, "origin": "null"}, False),
    ({"host": HERE, "sec-fetch-site": "cross-site"}, False),
    ({"host": HERE}, True),
    ({"host": HERE, "origin": "http://evil.example"}, True),
    ({"host": "evil.example:2718", "origin": "http://evil.example:2718"}, True),
]


def pairs(headers):
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(("headers", "websocket"), ALLOWED)
def test_pages_of_this_machine_are_answered(headers, websocket):
    assert is_allowed(pairs(headers), websocket=websocket)


@pytest.mark.parametrize(("headers", "websocket"), FOREIGN)
def test_pages_from_elsewhere_are_refused(headers, websocket):
    assert not is_allowed(pairs(headers), websocket=websocket)


@pytest.mark.parametrize("twice", ["host", "origin"])
def test_a_header_that_is_given_twice_is_refused(twice):
    good = {"host": HERE, "origin": f"http://{HERE}"}
    assert not is_allowed([*pairs(good), *pairs({twice: good[twice]})], websocket=False)


async def _application(scope, receive, send):
    headers = [(b"access-control-allow-origin", b"*"), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"the page"})


def sent(kind, headers):
    """What the guarded application sends for one request."""
    messages = []

    async def receive():
        return {"type": f"{kind}.connect"}

    async def send(message):
        messages.append(message)

    asyncio.run(same_machine(_application)({"type": kind, "headers": pairs(headers)}, receive, send))
    return messages


def test_no_other_origin_is_told_that_it_may_read():
    start, body = sent("http", {"host": HERE})
    assert start["headers"] == [(b"content-type", b"text/plain")]
    assert body["body"] == b"the page"


def test_a_foreign_request_never_reaches_the_page():
    start, body = sent("http", {"host": "evil.example"})
    assert start["status"] == 403
    assert b"the page" not in body["body"]
    assert sent("websocket", {"host": HERE, "origin": "http://evil.example"}) == [
        {"type": "websocket.close", "code": 1008}
    ]


@pytest.fixture(scope="module")
def port():
    pytest.importorskip("marimo", reason="marimo is not installed; `make browser` does")
    words = [sys.executable, "-m", "moejax", "explore", "--port", "0", "--no-browser"]
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as server:
        found = next((m for line in server.stderr if (m := re.search(r"http://127\.0\.0\.1:(\d+)/", line))), None)
        assert found
        yield int(found[1])
        server.send_signal(2)
        server.communicate(timeout=30)


def answer(port, headers, method="GET"):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.putrequest(method, "/", skip_host=True)
        for name, value in {**headers, "Connection": "close"}.items():
            connection.putheader(name, value)
        connection.endheaders()
        with connection.getresponse() as found:
            return found.status, {name.lower() for name, _ in found.getheaders()}, found.read()


@pytest.mark.browser
def test_a_real_server_answers_its_own_pages_alone(port):
    here = f"127.0.0.1:{port}"
    status, names, body = answer(port, {"Host": here})
    assert status == 200
    assert b"moejax: laws of mixtures" in body
    assert not [name for name in names if name.startswith("access-control-")]
    for headers in (
        {"Host": "evil.example"},
        {"Host": here, "Origin": "http://evil.example"},
        {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},
    ):
        for method in ("GET", "OPTIONS", "POST"):
            status, names, body = answer(port, headers, method)
            assert status == 403
            assert b"moejax: laws" not in body
            assert not [name for name in names if name.startswith("access-control-")]


def handshake(port, origin):
    """The first line that a server answers to a browser that opens a WebSocket."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        "GET /ws?session_id=s_000000&file= HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Origin: {origin}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.browser
def test_a_real_server_opens_a_websocket_for_its_own_pages_alone(port):
    assert b" 101 " in handshake(port, f"http://127.0.0.1:{port}")
    assert b" 403 " in handshake(port, "http://evil.example")
    assert b" 403 " in handshake(port, "null")
