"""Where requests are observed: what HTTP says of each is there while it is handed to the engine."""

from uuid import uuid4

from partita.engine.observing import INCOMING, Incoming, is_request_id
from partita.protocols.http.connection import Connection
from partita.protocols.http.handler import Handler
from partita.protocols.http.heads import RequestHead


class ObservedHandler:
    """Stands before the handler of a port. Each request is looked at anew: none takes the shortest way."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        """Hand a request on, with its name and its trace."""
        token = INCOMING.set(
            Incoming(
                "http",
                name_of(_text(head, b"x-request-id")),
                traceparent=_text(head, b"traceparent"),
                tracestate=_text(head, b"tracestate"),
            )
        )
        try:
            self._handler.handle(connection, head, data, start)
        finally:
            INCOMING.reset(token)
            connection.repeat = None

    def abandoned(self, connection: Connection) -> None:
        """Tell whoever has the request."""
        self._handler.abandoned(connection)


def name_of(given: str) -> str:
    """Return a request's name as its client told it, or a new one."""
    return given if is_request_id(given) else uuid4().hex


def _text(head: RequestHead, name: bytes) -> str:
    return (head.header(name) or b"").decode("latin-1")
