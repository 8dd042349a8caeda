"""Predictions by the short way: from a complete HTTP request to the engine, and from its answer to bytes."""

from collections.abc import Sequence
from dataclasses import replace

from partita.core.errors import PartitaError, RequestError
from partita.engine.request import Buffer, Request, Shapes
from partita.protocols.http.compression import COMPRESS_FROM_BYTES, compressed
from partita.protocols.http.connection import Connection
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.responses import response_head
from partita.protocols.torchserve.fields import fields_of
from partita.protocols.torchserve.predictions import Predictor
from partita.protocols.torchserve.replies import HEADERS, error_document, media_of, pretty, request_id
from partita.protocols.torchserve.tensors import Asked, by_input, values_of

PREFIX = "/predictions/"
MEMO_ENTRIES = 1024
_COMMON = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class DirectPredictions:
    """Submits predictions and answers their connections. The engine's `Sink` for them."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._targets: dict[str, tuple[str, str]] = {}

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        """Take a request below `PREFIX` whose body is ``data[start:]``; every failure is answered."""
        model, version = self._targets.get(head.path) or self._target(head.path)
        try:
            service = self._predictor.find(model, version, _text(head, b"authorization"))
            kind = _text(head, b"content-type") or ""
            given = by_input(service.signature, fields_of(data[start:], kind))
            asked = Asked(service.signature, given, service.memo.setdefault("torchserve", {}))
            context = (connection, asked.is_single, service)
            connection.pending = asked.submit(service, self, context)
        except PartitaError as error:
            _fail(connection, error)

    def _target(self, path: str) -> tuple[str, str]:
        model, _, rest = path.removeprefix(PREFIX).partition("/")
        if len(self._targets) >= MEMO_ENTRIES:
            self._targets.clear()
        target = self._targets[path] = model, rest.partition("/")[0]
        return target

    # --- Sink -------------------------------------------------------------------------------------

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """Write the response from the worker's memory."""
        connection, is_single, service = request.context
        try:
            values = values_of(service.signature, outputs, shapes, is_single=is_single)
        except RequestError as error:
            _fail(connection, error)
            return
        if isinstance(values, bytes):
            connection.respond(_response(connection, 200, values, media_of(values)))
        else:
            connection.respond(_response(connection, 200, pretty(values), "application/json"))

    def failed(self, request: Request, error: RequestError) -> None:
        """Answer with the error."""
        _fail(request.context[0], error)


def _fail(connection: Connection, error: PartitaError) -> None:
    """Answer with an error, and close, as TorchServe does."""
    document = error_document(error)
    response = _response(connection, document["code"], pretty(document), "application/json")
    if connection.head is not None:
        connection.head = replace(connection.head, keep_alive=False)
    connection.respond(response)


def _response(connection: Connection, status: int, body: bytes, media: str) -> bytes:
    head = connection.head
    given = None if head is None else _text(head, b"x-request-id")
    headers = [
        (b"content-type", media.encode()),
        (b"x-request-id", request_id(given).encode("latin-1", "replace")),
        *_COMMON,
    ]
    if head is not None and head.response_coding and len(body) >= COMPRESS_FROM_BYTES:
        body = compressed(body, head.response_coding)
        headers.append((b"content-encoding", head.response_coding.encode()))
    return response_head(status, headers, len(body)) + body


def _text(head: RequestHead, name: bytes) -> str | None:
    value = head.header(name)
    return None if value is None else value.decode("latin-1")
