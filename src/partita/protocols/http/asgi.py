"""A bridge from a connection to an ASGI application, for everything that is not the request path."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

from starlette.types import ASGIApp, Message

from partita.core.errors import InvalidRequest, PartitaError, PayloadTooLarge
from partita.protocols.http.compression import COMPRESS_FROM_BYTES, compressed, decompressed
from partita.protocols.http.connection import Connection
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.responses import chunked_head, response_head

log = logging.getLogger(__name__)


class AsgiBridge:
    """Runs one application call per request and sends what it answered as one response, or in chunks."""

    def __init__(self, app: ASGIApp, loop: asyncio.AbstractEventLoop, *, max_body_bytes: int) -> None:
        self._app = app
        self._loop = loop
        self._max_body_bytes = max_body_bytes
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        """Start the application on a request whose body is ``data[start:]``."""
        body = data[start:]
        if head.content_encoding not in ("", "identity"):
            try:
                body = decompressed(body, head.content_encoding, max_bytes=self._max_body_bytes)
            except InvalidRequest as error:
                status = 413 if isinstance(error, PayloadTooLarge) else 400
                connection.fail(status, str(error))
                return
        task = self._loop.create_task(self._run(connection, head, body))
        connection.pending = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abandoned(self, connection: Connection) -> None:
        """Stop working for a client that is gone."""
        if isinstance(connection.pending, asyncio.Task):
            connection.pending.cancel()

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, connection: Connection, head: RequestHead, body: bytes) -> None:
        received = False
        start: Message = {"status": 500, "headers": []}
        parts: list[bytes] = []
        takes_chunks = head.http_version == "1.1" and head.method != "HEAD"

        async def receive() -> Message:
            nonlocal received
            if received:
                await asyncio.Event().wait()  # the client is there until `abandoned` cancels us
            received = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body":
                body = bytes(message.get("body", b""))
                if message.get("more_body") and takes_chunks and not connection.has_begun:
                    connection.begin(chunked_head(start["status"], _own_headers(connection, head, start)))
                if connection.has_begun:
                    connection.more(body)
                else:
                    parts.append(body)

        try:
            await self._app(_scope(connection, head), receive, send)
        except Exception as error:
            if connection.has_begun:
                is_known = isinstance(error, PartitaError)
                said = "%s %s: the answer ends in its middle: %s"
                log.warning(said, head.method, head.path, error, exc_info=not is_known)
                connection.break_off()
                return
            log.exception("%s %s failed", head.method, head.path)
            connection.fail(500, "internal error")
            return
        if connection.has_begun:
            connection.end()
            return
        content = b"".join(parts)
        headers = _own_headers(connection, head, start)
        if head.response_coding and len(content) >= COMPRESS_FROM_BYTES:
            content = compressed(content, head.response_coding)
            headers.append((b"content-encoding", head.response_coding.encode()))
        text = response_head(start["status"], headers, len(content))
        connection.respond(text if head.method == "HEAD" else text + content)


def _own_headers(connection: Connection, head: RequestHead, start: Message) -> list[tuple[bytes, bytes]]:
    """Return the application's headers; that it wants to close is noted at the connection."""
    given: list[tuple[bytes, bytes]] = list(start["headers"])
    if (b"connection", b"close") in given:
        connection.head = replace(head, keep_alive=False)
    return [(k, v) for k, v in given if k.lower() not in (b"content-length", b"connection")]


def _scope(connection: Connection, head: RequestHead) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.http_version,
        "method": head.method,
        "scheme": "http" if connection.transport.get_extra_info("ssl_object") is None else "https",
        "path": head.path,
        "raw_path": head.raw_path,
        "query_string": head.query,
        "root_path": "",
        "headers": list(head.headers),
        "client": connection.transport.get_extra_info("peername"),
        "server": connection.transport.get_extra_info("sockname"),
        "state": {},
    }
