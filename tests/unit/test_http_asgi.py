"""The bridge to ASGI applications, and what becomes of their requests when the client goes away."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from partita.core.errors import InferenceFailed
from partita.engine.engine import Engine
from partita.protocols.door import Door, infer_target
from partita.protocols.http.asgi import AsgiBridge
from partita.protocols.http.connection import Connection
from partita.protocols.http.listener import HttpLimits, Listener
from partita.protocols.oip.inference import Inference
from tests.fake_transport import FakeTransport


class Asked:
    """One connection to a door whose other requests go to an ASGI application."""

    def __init__(self, app: Any) -> None:
        loop = asyncio.get_running_loop()
        self.bridge = AsgiBridge(app, loop, max_body_bytes=1 << 20)
        door = Door(Inference(Engine(loop), max_body_bytes=1000), self.bridge)
        self.transport = FakeTransport()
        self.connection = Connection(Listener(door, HttpLimits(), loop))
        self.connection.connection_made(self.transport)

    async def ask(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of the answer."""
        self.connection.data_received(data)
        await until(lambda: not self.connection.is_busy)
        head, _, body = self.transport.written.partition(b"\r\n\r\n")
        return head, body


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    message = await receive()
    document = {
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode(),
        "headers": [[k.decode(), v.decode()] for k, v in scope["headers"]],
        "body": message["body"].decode(),
    }
    headers = [(b"x-own", b"1"), (b"Content-Length", b"99999")]
    await send({"type": "http.response.start", "status": 201, "headers": headers})
    body = json.dumps(document).encode()
    await send({"type": "http.response.body", "body": body[:5], "more_body": True})
    await send({"type": "http.response.body", "body": body[5:]})


async def broken(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("the reason is for the log alone")


def test_a_request_and_its_answer_pass_through() -> None:
    async def main() -> None:
        asked = Asked(echo)
        head, body = await asked.ask(b"PUT /a%20b?c=d HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
        assert body.startswith(b'5\r\n{"met\r\n')  # as it came: in two chunks
        body = b"".join(body.split(b"\r\n")[1::2])
        document = json.loads(body)
        assert document.pop("headers") == [["host", "h"], ["content-length", "2"]]
        assert document == {"method": "PUT", "path": "/a b", "query": "c=d", "body": "hi"}
        assert head.split(b"\r\n") == [
            b"HTTP/1.1 201 Created", b"x-own: 1", b"transfer-encoding: chunked",
        ]  # fmt: skip

    asyncio.run(main())


def test_who_cannot_take_chunks_gets_the_answer_whole() -> None:
    async def main() -> None:
        head, body = await Asked(echo).ask(b"GET / HTTP/1.0\r\nHost: h\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert json.loads(body)["method"] == "GET"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "has_traceback"), [(ValueError("not foreseen"), True), (InferenceFailed("told to all"), False)]
)
def test_an_application_that_fails_in_the_middle_of_its_answer_is_cut_off_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture, error: Exception, has_traceback: bool
) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise error

    async def main() -> None:
        asked = Asked(fails)
        _, body = await asked.ask(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (body, asked.transport.closed) == (b"4\r\nhalf\r\n", True)

    asyncio.run(main())
    assert f"GET /: the answer ends in its middle: {error}" in caplog.text
    assert ("Traceback" in caplog.text) is has_traceback


def test_head_has_the_length_and_no_body() -> None:
    async def main() -> None:
        head, body = await Asked(echo).ask(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (b"content-length: 0" in head, body) == (False, b"")

    asyncio.run(main())


def test_an_application_that_raises_is_500_and_the_connection_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        asked = Asked(broken)
        head, body = await asked.ask(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 500 ")
        assert json.loads(body) == {"error": "internal error"}
        assert not asked.transport.is_closed()
        assert "GET /x failed" in caplog.text

    asyncio.run(main())


@pytest.mark.parametrize("how", ["client", "server"])
def test_an_application_is_stopped_when_nobody_waits_any_more(how: str) -> None:
    ended: list[str] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        ended.append("begun")
        try:
            await receive()
        finally:
            ended.append("cancelled")

    async def main() -> None:
        asked = Asked(endless)
        asked.connection.data_received(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: ended)
        if how == "client":
            asked.connection.connection_lost(None)
            await until(lambda: len(ended) == 2)
        else:
            await asked.bridge.close()
        assert ended == ["begun", "cancelled"]
        assert asked.transport.written == b""

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/v2/models/m/infer", ("m", "")),
        ("/v2/models/m/versions/2/infer", ("m", "2")),
        ("/v2/models//infer", None),
        ("/v2/models/m/versions//infer", None),
        ("/v2/models/m/other/2/infer", None),
        ("/v2/models/m/n/infer", None),
        ("/v2/models/m", None),
        ("/v2/models/infer", None),
        ("/", None),
    ],
)
def test_which_model_a_path_asks(path: str, target: tuple[str, str] | None) -> None:
    assert infer_target(path) == target
