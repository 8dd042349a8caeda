"""Pages of other origins that may ask (the fetch standard's CORS protocol); nobody's by default."""

from collections.abc import Iterable

from partita.protocols.http.connection import Connection
from partita.protocols.http.handler import Handler
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.responses import response_head

ANY = "*"
METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
EXPOSED = b"inference-header-content-length, x-request-id"
"""Headers of answers that a page may read, beside those that it always may."""
MAX_AGE_S = 600
"""How long a browser may remember what it was told of a page."""


class Origins:
    """The origins whose pages may ask; ``*`` is every one."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def allow(self, origin: str) -> bool:
        """Whether pages of this origin may ask."""
        return ANY in self._allowed or origin in self._allowed

    def lines(self, head: RequestHead) -> bytes:
        """Return the header lines that tell a browser so; none for a request of no page, or of another."""
        origin = head.header(b"origin")
        if origin is None or not self.allow(origin.decode("latin-1")):
            return b""
        return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\nvary: origin\r\n" % (
            origin,
            EXPOSED,
        )


class CorsHandler:
    """Answers browsers that ask beforehand whether a page may ask; hands every other request on."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        """Take a request whose origin was looked at when its head was read."""
        asked = head.header(b"access-control-request-method")
        if head.method == "OPTIONS" and head.added and asked is not None:
            connection.respond(_preflight(head))
        else:
            self._handler.handle(connection, head, data, start)

    def abandoned(self, connection: Connection) -> None:
        """Tell whoever has the request."""
        self._handler.abandoned(connection)


def _preflight(head: RequestHead) -> bytes:
    """Return that all methods and the headers that were asked for are allowed."""
    fields = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", b"%d" % MAX_AGE_S),
    ]
    if wanted := head.header(b"access-control-request-headers"):
        fields.append((b"access-control-allow-headers", wanted))
    return response_head(204, fields, 0)
