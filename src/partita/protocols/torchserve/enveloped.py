"""The Open Inference Protocol's JSON, for archives whose handlers take it and answer it themselves."""

from collections.abc import Sequence

import msgspec

from partita.core.errors import InvalidRequest, RequestError
from partita.engine.observing import INCOMING, say_request_id
from partita.engine.request import Buffer, Request, Shapes
from partita.engine.service import Service
from partita.protocols.http.connection import Connection
from partita.protocols.http.heads import RequestHead
from partita.protocols.http.responses import error_response
from partita.protocols.oip.inference import STATUS
from partita.protocols.torchserve.archives import (
    answer_in,
    asked_archive,
    header_list,
    response_of,
    speaks_oip,
)
from partita.protocols.torchserve.direct import header_text, http_response
from partita.protocols.torchserve.fields import parts_of
from partita.protocols.torchserve.predictions import Predictor
from partita.protocols.torchserve.replies import message_of, request_id


class _Named(msgspec.Struct):
    id: str = ""


class EnvelopedInference:
    """Hands requests to such handlers as they came. The engine's `Sink` for them.

    Errors are those of the protocol, but say no more of a handler than TorchServe does.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def take(
        self, service: Service, connection: Connection, head: RequestHead, data: bytes, start: int
    ) -> bool:
        """Take a request if the service's handler speaks the protocol; ``data[start:]`` is uncompressed.

        Raises `RequestError`, `NotAuthorized` without the inference key where that is asked for.
        """
        if not speaks_oip(service):
            return False
        self._predictor.check(header_text(head, b"authorization"))
        name, body = request_id(header_text(head, b"x-request-id")), data[start:]
        if head.inference_header_length not in (None, len(body)):
            text = "takes the protocol's JSON alone: send the tensors' data in it, without binary_data"
            raise InvalidRequest(f"the handler of model {service.name!r} {text}")
        headers = header_list((k.decode("latin-1"), v.decode("latin-1")) for k, v in head.headers)
        parts = parts_of(body, header_text(head, b"content-type") or "")
        asked = asked_archive(service, name, parts, headers)
        if INCOMING.get() is not None:  # nobody else wants the body read twice
            say_request_id(_said_id(body))
        connection.pending = asked.submit(service, self, (connection, name, service))
        return True

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        """Write what the handler answered; an error that it told becomes one of the protocol."""
        connection, name, _ = request.context
        try:
            answer = answer_in(outputs)
        except RequestError as error:
            self.failed(request, error)
            return
        status, body, ((_, media), *more) = response_of(answer)
        if answer.error:
            connection.respond(error_response(status, answer.error, close=False))
        else:
            connection.respond(http_response(connection, name, status, body, media, more))

    def failed(self, request: Request, error: RequestError) -> None:
        """Answer with the error."""
        status = STATUS.get(error.code, 500)
        request.context[0].respond(error_response(status, message_of(error), close=False))


def _said_id(body: bytes) -> str:
    """Return the ``id`` of a request, empty for none; whether the rest is right is the handler's to say."""
    try:
        return msgspec.json.decode(body, type=_Named).id
    except (msgspec.DecodeError, RecursionError):
        return ""
