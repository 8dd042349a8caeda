"""Who takes the requests of a connection, and what stands for one that comes again."""

from typing import TYPE_CHECKING, Protocol

from partita.protocols.http.heads import RequestHead

if TYPE_CHECKING:
    from partita.protocols.http.connection import Connection


class Repeat:
    """What a request's first bytes mean, decided once: one that begins with them again goes straight on.

    Only for a request that came whole in one read, from a client that keeps its connection and takes the
    answer as it is.
    """

    __slots__ = ("head", "nbytes", "prefix")

    def __init__(self, head: RequestHead, prefix: bytes, nbytes: int) -> None:
        self.head = head
        self.prefix = prefix
        """Everything before the data: the head, and what of the body is to be the same."""
        self.nbytes = nbytes
        """Length of the whole request."""

    def handle(self, connection: "Connection", data: bytes) -> None:
        """Take the whole request, as `Handler.handle` does."""
        raise NotImplementedError


class Handler(Protocol):
    """Takes complete requests."""

    def handle(self, connection: "Connection", head: RequestHead, data: bytes, start: int) -> None:
        """Answer with `connection.respond`, now or later. The body is ``data[start:]``."""

    def abandoned(self, connection: "Connection") -> None:
        """The client of the request at hand is gone; `connection.pending` says which request that was."""
