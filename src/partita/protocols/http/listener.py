"""A listening address: its connections, their limits, and the handler that takes their requests."""

import asyncio
import socket
import ssl
from dataclasses import dataclass

from partita.core.errors import InvalidInput
from partita.protocols.http.connection import Connection
from partita.protocols.http.cors import CorsHandler, Origins
from partita.protocols.http.handler import Handler
from partita.protocols.http.heads import HeadMemo
from partita.protocols.http.responses import Failures, plain_failure

TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one client may take; each is a setting of ``[server]`` by the same name."""

    max_body_bytes: int = 64 << 20
    max_header_bytes: int = 16 << 10
    max_connections: int = 4096
    idle_timeout_s: float = 75.0
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    min_body_bytes_per_s: int = 1024


class Listener:
    """Accepts connections on one address and sees to their time limits."""

    def __init__(
        self,
        handler: Handler,
        limits: HttpLimits,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: ssl.SSLContext | None = None,
        origins: Origins | None = None,
        failures: Failures = plain_failure,
    ) -> None:
        self.handler = handler if origins is None else CorsHandler(handler)
        self.failures = failures
        self._tls = tls
        self.limits = limits
        self.loop = loop
        self.heads = HeadMemo(None if origins is None else origins.lines)
        self.tick = 0
        """Seconds since the start, roughly: cheap to read for every request."""
        self.is_draining = False
        self.refusals: dict[int, int] = {}
        """Requests answered before they reached the handler, by status."""
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (a free one is chosen for 0). Raises `InvalidInput` if it is taken."""
        try:
            self._server = await self.loop.create_server(
                lambda: Connection(self),
                host,
                port,
                backlog=4096,
                reuse_address=True,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self.limits.header_timeout_s,
            )
        except OSError as error:
            raise InvalidInput(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._timer = self.loop.call_later(TICK_S, self._check_times)
        bound: socket.socket = self._server.sockets[0]
        return int(bound.getsockname()[1])

    def admit(self, connection: Connection) -> bool:
        """Whether one more connection is allowed; counts it."""
        allowed = len(self._connections) < self.limits.max_connections
        self._connections.add(connection)
        return allowed

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._connections.discard(connection)

    def count_refusal(self, status: int) -> None:
        """A request was refused by its framing or size."""
        self.refusals[status] = self.refusals.get(status, 0) + 1

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    def _check_times(self) -> None:
        self.tick += 1
        for connection in list(self._connections):
            connection.check_time(self.tick)
        self._timer = self.loop.call_later(TICK_S, self._check_times)

    def stop_accepting(self) -> None:
        """Take no new connections; those at hand get their answers and are closed after them."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.shut_down()

    async def close(self) -> None:
        """Close everything that is still open."""
        self.stop_accepting()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.transport.close()
        deadline_s = self.loop.time() + 1.0
        while self._connections and self.loop.time() < deadline_s:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.transport.abort()
        while self._connections:
            await asyncio.sleep(0)
        if self._server is not None:
            await self._server.wait_closed()
