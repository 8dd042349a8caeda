"""One client connection: frames requests, answers them in order, and keeps to the limits."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from partita.core.errors import InvalidRequest, PayloadTooLarge
from partita.protocols.http.chunked import ChunkedBody
from partita.protocols.http.handler import Repeat
from partita.protocols.http.heads import RequestHead, asked_for
from partita.protocols.http.responses import CONTINUE, LAST_CHUNK, Failure, with_close, with_lines

if TYPE_CHECKING:
    from partita.protocols.http.listener import Listener

WRITE_BUFFER_BYTES = 1 << 20
"""Unsent bytes above which nothing more is read from the client."""

MAX_UNREAD_BYTES = 16 << 20
"""Of a response in chunks; a client that has more of it unread is cut off."""


class Connection(asyncio.Protocol):
    """Reads one request at a time; bytes of the next ones wait until it is answered.

    A handler takes the request in `Handler.handle` and calls `respond` once, then or later; or `begin`, then
    `more` as often as it likes, and `end`. If the client goes away first, `Handler.abandoned` is called.
    """

    __slots__ = (
        "_armed", "_body_bytes", "_body_s", "_buffer", "_chunked", "_listener", "_missing", "_parts",
        "_reading", "_taken", "_told", "_writing", "has_begun", "head", "is_busy", "is_closing", "pending",
        "repeat", "since_tick", "transport",
    )  # fmt: skip

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self.repeat: Repeat | None = None
        """The handler's: what the latest request would mean if it came again."""
        self._armed: Repeat | None = None
        """The same while the next byte must be the first of a request, else None."""
        self._buffer = b""
        self._parts: list[bytes] = []
        self._missing = 0
        self._chunked: ChunkedBody | None = None
        self._body_bytes = 0
        """Of the body that is being read, its framing counted; it came in parts."""
        self._body_s = 0
        """Seconds since its head in which the client could send."""
        self._reading = True
        self._writing = True
        self._told = 0
        """Bytes of chunks that were written to it."""
        self._taken = 0
        """The same less those that the client had not read, at the last tick: progress is that it rises.

        Less than nothing where it has to read what is no chunk.
        """
        self.head: RequestHead | None = None
        """Head of the request that is being read or answered."""
        self.is_busy = False
        """Whether a request is with its handler."""
        self.has_begun = False
        """Whether a response in chunks is under way."""
        self.is_closing = False
        self.pending: Any = None
        """The handler's own, for `Handler.abandoned`."""
        self.since_tick = 0
        """Listener's tick of the last progress."""

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it over the limit."""
        self.transport = cast(asyncio.Transport, transport)
        self.since_tick = self._listener.tick
        if not self._listener.admit(self):
            limit = self._listener.limits.max_connections
            self._listener.count_refusal(503)
            self._send_failure(503, f"more than max_connections = {limit} connections", b"")
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Tell the handler that nobody waits any more."""
        self.is_closing = True
        self.has_begun = False
        self._buffer = b""
        self._parts = []
        self._listener.forget(self)
        if self.is_busy:
            self.is_busy = False
            self._listener.handler.abandoned(self)

    def eof_received(self) -> bool:
        """Take a client that sends no more for gone, as one that closes sends nothing else to tell it by."""
        return False

    def pause_writing(self) -> None:
        """The client reads too slowly: read no more from it."""
        self._writing = False
        self._armed = None
        self.since_tick = self._listener.tick
        self._taken = self._told - self.transport.get_write_buffer_size()
        self._pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._writing = True
        self._listener.loop.call_soon(self._continue)

    def data_received(self, data: bytes) -> None:
        """Take bytes; hands every complete request on."""
        repeat = self._armed
        if repeat is not None:
            self._armed = None
            if len(data) == repeat.nbytes and data.startswith(repeat.prefix):
                self.since_tick = self._listener.tick
                self.head = repeat.head
                self.is_busy = True
                repeat.handle(self, data)
                return
        if self.is_busy or not self._writing:
            self._buffer += data
            if len(self._buffer) > WRITE_BUFFER_BYTES:
                self._pause_reading()
        elif self.is_closing:
            return
        elif self.head is not None:
            self.since_tick = self._listener.tick
            self._more_body(data)
        elif self._buffer:  # of a head, whose time began with its first byte
            self._buffer, data = b"", self._buffer + data
            self._begin(data)
        else:
            self.since_tick = self._listener.tick
            self._begin(data)

    # --- reading ----------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> None:
        """Data begins with a request's head."""
        end = data.find(b"\r\n\r\n")
        limits = self._listener.limits
        if end < 0 or end > limits.max_header_bytes:
            self._incomplete_head(data)
            return
        start = end + 4
        if not end:  # empty lines before a request are skipped (RFC 9112 §2.2)
            self._begin(data.lstrip(b"\r\n"))
            return
        try:
            head = self._listener.heads.head(data[:start])
        except InvalidRequest as error:
            self._refuse(400, str(error), data)
            return
        self.head = head
        length = head.content_length
        if length > limits.max_body_bytes:
            self._refuse(413, f"the body of {length} bytes is over max_body_bytes = {limits.max_body_bytes}")
            return
        have = len(data) - start
        if 0 <= length <= have:
            if have > length:
                self._buffer = data[start + length :]
                data = data[: start + length]
            self.is_busy = True
            self._listener.handler.handle(self, head, data, start)
            return
        self.since_tick = self._listener.tick
        self._body_bytes, self._body_s = have, 0
        if head.expects_continue and head.http_version == "1.1":
            self.transport.write(CONTINUE)
        if length < 0:
            self._chunked = ChunkedBody(max_bytes=limits.max_body_bytes)
            self._more_chunks(data[start:])
        else:
            self._parts = [data[start:]]
            self._missing = length - have

    def _incomplete_head(self, data: bytes) -> None:
        limit = self._listener.limits.max_header_bytes
        if len(data) > limit:
            self._refuse(431, f"the request's head is over max_header_bytes = {limit}", data)
            return
        self._buffer = data.lstrip(b"\r\n") if data[:1] in b"\r\n" else data

    def _more_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._chunked is not None:
            self._more_chunks(data)
            return
        missing = self._missing - len(data)
        if missing > 0:
            self._parts.append(data)
            self._missing = missing
            return
        if missing < 0:
            self._buffer = data[missing:]
            data = data[:missing]
        self._parts.append(data)
        parts, self._parts, self._missing = self._parts, [], 0
        self._hand_over(b"".join(parts))

    def _more_chunks(self, data: bytes) -> None:
        assert self._chunked is not None
        try:
            rest = self._chunked.feed(data)
        except PayloadTooLarge as error:
            self._refuse(413, str(error))
            return
        except InvalidRequest as error:
            self._refuse(400, str(error))
            return
        if self._chunked.is_complete:
            body = b"".join(self._chunked.parts)
            self._chunked = None
            self._buffer = rest
            self._hand_over(body)

    def _hand_over(self, body: bytes) -> None:
        assert self.head is not None
        self.is_busy = True
        self._listener.handler.handle(self, self.head, body, 0)

    def _pause_reading(self) -> None:
        if self._reading and not self.is_closing:
            self._reading = False
            self.transport.pause_reading()

    # --- answering --------------------------------------------------------------------------------

    def respond(self, response: bytes) -> None:
        """Send the one response to the request at hand, then read on (or close, as the head said)."""
        if not self.is_busy:
            return
        self.is_busy = False
        self.pending = None
        head, self.head = self.head, None
        listener = self._listener
        self.since_tick = listener.tick
        if head is not None and head.added:
            response = with_lines(response, head.added)
        if head is None or not head.keep_alive or listener.is_draining:
            self.transport.write(with_close(response))
            self._close()
            return
        self.transport.write(response)
        if self._buffer or not self._reading:
            listener.loop.call_soon(self._continue)
        elif self._writing:
            self._armed = self.repeat

    def begin(self, response: bytes) -> None:
        """Send the head of a response to the request at hand whose content comes in chunks."""
        head = self.head
        if not self.is_busy or head is None:
            return
        self.has_begun = True
        if head.added:
            response = with_lines(response, head.added)
        closes = not head.keep_alive or self._listener.is_draining
        self.transport.write(with_close(response) if closes else response)

    def more(self, data: bytes) -> None:
        """Send a chunk. A client that does not read them is cut off before they fill the memory."""
        if not (self.has_begun and self.is_busy and data):
            return
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        self._told += len(chunk)
        self.transport.write(chunk)
        if self.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()

    def end(self, data: bytes = b"") -> None:
        """Send the last chunk, then read on (or close, as the request's head said)."""
        self.more(data)
        head = self.head
        if not (self.has_begun and self.is_busy) or head is None:
            return
        self.has_begun = False
        if head.keep_alive and not self._listener.is_draining:
            self.head = replace(head, added=b"")
            self.respond(LAST_CHUNK)
            return
        self.is_busy = False
        self.pending = self.head = None
        self.transport.write(LAST_CHUNK)
        self._close()

    def break_off(self) -> None:
        """Close within a response in chunks: that the last one is missing says that it is not whole."""
        if self.has_begun and self.is_busy:
            self.has_begun = self.is_busy = False
            self.pending = self.head = None
            self._close()

    def _continue(self) -> None:
        if self.is_closing or self.is_busy or not self._writing:
            return
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()
        if self._buffer:
            data, self._buffer = self._buffer, b""
            (self._begin if self.head is None else self._more_body)(data)

    def _refuse(self, status: int, message: str, data: bytes = b"") -> None:
        """Answer what cannot be handed on, and close: where the next request begins is not known."""
        self._listener.count_refusal(status)
        self._send_failure(status, message, data)

    def _send_failure(self, status: int, message: str, data: bytes) -> None:
        self.transport.write(with_close(self._failure(status, message, data)[0]))
        self._linger()

    def _failure(self, status: int, message: str, data: bytes) -> Failure:
        head = self.head
        method, path = asked_for(data) if head is None else (head.method, head.path)
        return self._listener.failures(status, message, method, path)

    def fail(self, status: int, message: str) -> None:
        """Respond with an error as the port shapes it."""
        response, closes = self._failure(status, message, b"")
        if closes and self.head is not None:
            self.head = replace(self.head, keep_alive=False)
        self.respond(response)

    def _linger(self) -> None:
        """Close for writing, and throw away what still comes until the client closes too.

        Closing at once, with bytes unread, would make the kernel reset the connection, and the client would
        often lose the very answer that says why (RFC 9112 §9.6).
        """
        self.is_closing = True
        self._armed = None
        self._buffer = b""
        self._parts = []
        self._chunked = None
        self.since_tick = self._listener.tick
        if not self.transport.can_write_eof():  # over TLS, whose end is told to the client by itself
            self.transport.close()
            return
        self.transport.write_eof()
        if not self._reading:
            self._reading = True
            self.transport.resume_reading()

    def _close(self) -> None:
        if not self.is_closing:
            self.is_closing = True
            self._armed = None
            self.since_tick = self._listener.tick
            self.transport.close()

    # --- time -------------------------------------------------------------------------------------

    def check_time(self, tick: int) -> None:
        """Cut a client that makes no progress; called once a tick (one second)."""
        limits = self._listener.limits
        waited = tick - self.since_tick
        if self.is_closing or not self._writing:
            taken = self._told - self.transport.get_write_buffer_size()
            if taken > self._taken:
                self.since_tick = tick
            elif waited > limits.body_timeout_s:
                self.transport.abort()
            self._taken = taken
        elif self.is_busy:
            return
        elif self.head is not None:
            self._check_body(waited)
        elif self._buffer:
            if waited > limits.header_timeout_s:
                limit_s = limits.header_timeout_s
                self._refuse(408, f"no head within header_timeout_s = {limit_s:g}", self._buffer)
        elif waited > limits.idle_timeout_s:
            self._close()

    def _check_body(self, waited_s: int) -> None:
        patience_s, least = self._listener.limits.body_timeout_s, self._listener.limits.min_body_bytes_per_s
        have, self._body_s = self._body_bytes, self._body_s + 1
        if waited_s > patience_s:
            self._refuse(408, f"no progress with the body within body_timeout_s = {patience_s:g}")
        elif have < least * (self._body_s - patience_s):
            self._refuse(408, f"{have} bytes of a body in {self._body_s} s; min_body_bytes_per_s = {least}")

    def shut_down(self) -> None:
        """Close as soon as the request at hand is answered."""
        if not self.is_busy and self.head is None and not self._buffer:
            self._close()
