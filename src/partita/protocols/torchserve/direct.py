"""Predictions by the short way: from a complete HTTP request to the engine, and from its answer to bytes."""

from collections.abc import Sequence
from dataclasses import replace

from partita.core.errors import PartitaError, RequestError
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import Service
from partita.protocols.http.compression import COMPRESS_FROM_BYTES, compressed
from partita.protocols.http.connection import Connection
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.responses import chunked_head, response_head
from partita.protocols.torchserve.archives import (
    answer_in,
    asked_archive,
    header_list,
    is_archive,
    response_of,
)
from partita.protocols.torchserve.fields import fields_of, parts_of
from partita.protocols.torchserve.predictions import Predictor
from partita.protocols.torchserve.replies import HEADERS, error_document, media_of, pretty, request_id
from partita.protocols.torchserve.tensors import Asked, by_input, values_of
from partita.wire.archive_call import Answer, unpack_answer

PREFIX = "/predictions/"
MEMO_ENTRIES = 1024
_COMMON = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class DirectPredictions:
    """Submits predictions and answers their connections. The engine's `PartSink` for them."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._targets: dict[str, tuple[str, str]] = {}

    def handle(self, connection: Connection, head: RequestHead, data: bytes, start: int) -> None:
        """Take a request below `PREFIX` whose body is ``data[start:]``; every failure is answered."""
        model, version = self._targets.get(head.path) or self._target(head.path)
        name = request_id(header_text(head, b"x-request-id"))
        try:
            service = self._predictor.find(model, version, header_text(head, b"authorization"))
            self._ask(service, connection, head, data[start:], name)
        except PartitaError as error:
            _fail(connection, error, name)

    def _ask(
        self, service: Service, connection: Connection, head: RequestHead, body: bytes, name: str
    ) -> None:
        kind = header_text(head, b"content-type") or ""
        if is_archive(service):
            given, takes_parts = parts_of(body, kind), head.http_version == "1.1"
            asked = asked_archive(service, name, given, self._headers(head), takes_parts=takes_parts)
        else:
            values = by_input(service.signature, fields_of(body, kind))
            asked = Asked(service.signature, values, service.memo.setdefault("torchserve", {}))
        context = (connection, asked.is_single, service, name)
        connection.pending = asked.submit(service, self, context)

    def _target(self, path: str) -> tuple[str, str]:
        model, _, rest = path.removeprefix(PREFIX).partition("/")
        if len(self._targets) >= MEMO_ENTRIES:
            self._targets.clear()
        target = self._targets[path] = model, rest.partition("/")[0]
        return target

    def _headers(self, head: RequestHead) -> list[tuple[str, str]]:
        """Return a request's headers, with what follows the version in its path as ``url_path``."""
        headers = header_list((k.decode("latin-1"), v.decode("latin-1")) for k, v in head.headers)
        if not head.path.startswith(PREFIX):
            return headers
        parts = head.path.removeprefix(PREFIX).split("/", maxsplit=2)
        return [*headers, ("url_path", parts[2])] if len(parts) > 2 else headers

    # --- PartSink ---------------------------------------------------------------------------------

    def part(self, request: Request, data: bytes) -> None:
        """Write a part of an archive's answer, the first below the response's head."""
        connection, _, _, name = request.context
        answer = unpack_answer(data)
        if not connection.has_begun:
            status, _, ((_, media), *more) = response_of(answer)
            _close_after(connection, status)
            connection.begin(chunked_head(status, _headers(name, media, more)))
        connection.more(answer.body)

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:
        """Write the response from the worker's memory."""
        connection, is_single, service, name = request.context
        try:
            if is_archive(service):
                _answer(connection, name, answer_in(outputs))
                return
            values = values_of(service.signature, outputs, shapes, is_single=is_single)
        except RequestError as error:
            _fail(connection, error, name)
            return
        if isinstance(values, bytes):
            connection.respond(http_response(connection, name, 200, values, media_of(values)))
        else:
            connection.respond(http_response(connection, name, 200, pretty(values), "application/json"))

    def failed(self, request: Request, error: RequestError) -> None:
        """Answer with the error."""
        _fail(request.context[0], error, request.context[3])


def _answer(connection: Connection, name: str, answer: Answer) -> None:
    """Answer what a handler did, or what of it is left; no error can be told any more after a part."""
    if not connection.has_begun:
        _finish(connection, name, *response_of(answer))
    elif answer.error:
        connection.break_off()
    else:
        connection.end(answer.body)


def _fail(connection: Connection, error: PartitaError, name: str) -> None:
    """Answer with an error, and close, as TorchServe does."""
    if connection.has_begun:
        connection.break_off()
        return
    document = error_document(error)
    _finish(connection, name, document["code"], pretty(document), [("content-type", "application/json")])


def _finish(
    connection: Connection, name: str, status: int, body: bytes, headers: list[tuple[str, str]]
) -> None:
    """Answer, and close after an error."""
    (_, media), *more = headers
    response = http_response(connection, name, status, body, media, more)
    _close_after(connection, status)
    connection.respond(response)


def _close_after(connection: Connection, status: int) -> None:
    if status >= 400 and connection.head is not None:
        connection.head = replace(connection.head, keep_alive=False)


def http_response(
    connection: Connection,
    name: str,
    status: int,
    body: bytes,
    media: str,
    more: Sequence[tuple[str, str]] = (),
) -> bytes:
    """Return a whole response with TorchServe's headers."""
    head = connection.head
    headers = _headers(name, media, more)
    if head is not None and head.response_coding and len(body) >= COMPRESS_FROM_BYTES:
        body = compressed(body, head.response_coding)
        headers.append((b"content-encoding", head.response_coding.encode()))
    return response_head(status, headers, len(body)) + body


def _headers(name: str, media: str, more: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", media.encode("latin-1")),
        *((key.encode("latin-1"), value.encode("latin-1")) for key, value in more),
        (b"x-request-id", name.encode("latin-1", "replace")),
        *_COMMON,
    ]


def header_text(head: RequestHead, name: bytes) -> str | None:
    """Return a header as text."""
    value = head.header(name)
    return None if value is None else value.decode("latin-1")
