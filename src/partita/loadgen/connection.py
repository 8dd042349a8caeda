"""One keep-alive connection: sends a prepared request, reads its answer, says how it ended."""

import asyncio
import re
from collections.abc import Callable
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)\s*(?:\r|$)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection:\s*close\s*(?:\r|$)", re.IGNORECASE)
_MOST_HEADS = 256

Ended = Callable[["Connection", str], None]
"""Called with the status (``"200"``), or ``"connection closed"`` or ``"malformed answer"``."""


class Connection(asyncio.Protocol):
    """Sends one request at a time. `tag` is the caller's own: the time that the request counts from."""

    __slots__ = ("_buffer", "_ended", "_heads", "_missing", "_status", "_transport", "busy", "tag")

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._missing = -1  # bytes of the body still to come; negative while the head is not complete
        self._status = ""
        self._heads: dict[bytes, tuple[str, int, bool]] = {}
        self.busy = False
        self.tag = 0.0

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent on it now or later."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, tag: float) -> None:
        """Send a whole request; only when not busy."""
        assert self._transport is not None
        assert not self.busy
        self.busy = True
        self.tag = tag
        self._transport.write(request)

    def close(self) -> None:
        """Close at once; an answer that is still awaited is given up without a word."""
        self.busy = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End the request in hand, if there is one."""
        self._transport = None
        self._finish("connection closed")

    def data_received(self, data: bytes) -> None:
        """Count the answer's bytes; the body's content is not looked at."""
        if self._missing < 0:
            data = self._buffer + data if self._buffer else data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return
            self._buffer = b""
            self._status, self._missing, closes = self._read_head(data[:end])
            if closes or self._missing < 0:
                self._end_connection("malformed answer" if self._missing < 0 else "")
                return
            data = data[end + 4 :]
        self._missing -= len(data)
        if self._missing <= 0:
            surplus, self._missing = self._missing, -1
            if surplus < 0 or not self.busy:  # bytes of an answer that nobody asked for
                self._end_connection("malformed answer")
            else:
                self._finish(self._status)

    def _read_head(self, head: bytes) -> tuple[str, int, bool]:
        """Return (status, body length, whether the server closes); servers repeat the same head."""
        known = self._heads.get(head)
        if known is None:
            length = _LENGTH.search(head)
            known = (
                head[9:12].decode("latin-1"),
                int(length[1]) if length else -1,
                bool(_CLOSES.search(head)),
            )
            if len(self._heads) < _MOST_HEADS:
                self._heads[head] = known
        return known

    def _end_connection(self, reason: str) -> None:
        """Give up the connection; with the status as the reason where the server closes it by itself."""
        status = reason or self._status
        if self._transport is not None:
            self._transport.abort()
        self._missing = -1
        self._finish(status)

    def _finish(self, status: str) -> None:
        if self.busy:
            self.busy = False
            self._ended(self, status)
