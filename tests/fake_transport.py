"""A transport and a loop that do nothing by themselves, to drive one connection step by step."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from partita.protocols.http.connection import Connection
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.listener import HttpLimits, Listener
from partita.protocols.http.responses import response_head


class FakeTransport(asyncio.Transport):
    """Remembers what was written and what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.closed = self.aborted = self.has_sent_eof = False
        self.reading = True

    def write(self, data: Any) -> None:
        assert not self.has_sent_eof, "written after the end"
        assert not self.closed, "written after close"
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.has_sent_eof = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def is_closed(self) -> bool:
        return self.closed

    def is_aborted(self) -> bool:
        return self.aborted

    def is_reading(self) -> bool:
        return self.reading

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class FakeLoop:
    """Keeps what is to be called soon until `run`."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        self._soon.append((callback, args))

    def run(self) -> None:
        while self._soon:
            callback, args = self._soon.pop(0)
            callback(*args)


class Recorder:
    """The `Handler`: keeps every request, and answers at once with its body unless it `holds`."""

    def __init__(self) -> None:
        self.requests: list[tuple[RequestHead, bytes]] = []
        self.abandonments = 0
        self.holds = False

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        self.requests.append((head, data[start:]))
        if not self.holds:
            self.answer(connection)

    def answer(self, connection: Connection) -> None:
        body = self.requests[-1][1]
        connection.respond(response_head(200, [], len(body)) + body)

    def abandoned(self, connection: Connection) -> None:
        self.abandonments += 1

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.requests]


class Wire:
    """One connection with everything around it."""

    def __init__(self, listener: Listener | None = None, **limits: Any) -> None:
        self.loop = FakeLoop()
        self.handler = Recorder()
        self.listener = listener or Listener(
            self.handler, HttpLimits(**limits), cast(asyncio.AbstractEventLoop, self.loop)
        )
        self.transport = FakeTransport()
        self.connection = Connection(self.listener)
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Send bytes in one packet, and let the loop do what follows."""
        self.connection.data_received(data)
        self.loop.run()

    def send_eof(self) -> bool:
        """Half-close; returns whether the connection stays open for writing."""
        stays = bool(self.connection.eof_received())
        self.loop.run()
        if not stays:
            self.transport.close()
        return stays

    def answer(self) -> None:
        self.handler.answer(self.connection)
        self.loop.run()

    def ticks(self, seconds: int) -> None:
        """Let time pass."""
        for _ in range(seconds):
            self.listener.tick += 1
            self.connection.check_time(self.listener.tick)

    @property
    def statuses(self) -> list[int]:
        """Status of every response, each framed by its Content-Length."""
        found, data = [], self.transport.written
        while data:
            head, data = data.split(b"\r\n\r\n", 1)
            lines = head.lower().split(b"\r\n")
            found.append(int(lines[0].split()[1]))
            lengths = [int(line[16:]) for line in lines if line.startswith(b"content-length: ")]
            data = data[lengths[0] :] if lengths else data
        return found
