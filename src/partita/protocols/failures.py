"""Errors that nobody's route answers, in the shape of the API that was asked: for each port, by the path.

What belongs to no API, or cannot be read far enough to tell, gets the keys of both error bodies, so that
clients of either can read it.
"""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from partita.protocols.http.responses import Failure, plain_failure, response_head
from partita.protocols.torchserve.inference import is_inference_path
from partita.protocols.torchserve.management import is_management_path
from partita.protocols.torchserve.replies import HEADERS, NOT_FOUND, pretty, reply, request_id

TYPES = {
    404: "ResourceNotFoundException",
    408: "RequestTimeoutException",
    413: "RequestEntityTooLargeException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
"""TorchServe's name for a status of the connection's own; BadRequestException for any other."""


def is_protocol_path(path: str) -> bool:
    """Whether a path is the Open Inference Protocol's, or its elder's."""
    return path in ("/v1", "/v2") or path.startswith(("/v1/", "/v2/"))


def inference_failure(status: int, message: str, method: str, path: str) -> Failure:
    """Return the answer of the inference port."""
    if is_inference_path(method, path):
        return _torchserve(status, message)
    return plain_failure(status, message, method, path) if is_protocol_path(path) else _both(status, message)


def management_failure(status: int, message: str, method: str, path: str) -> Failure:
    """Return the answer of the management port."""
    if is_management_path(method, path):
        return _torchserve(status, message)
    return plain_failure(status, message, method, path) if is_protocol_path(path) else _both(status, message)


def metrics_failure(status: int, message: str, method: str, path: str) -> Failure:  # noqa: ARG001
    """Return the answer of the metrics port, whose errors are TorchServe's."""
    return _torchserve(status, message)


def unknown_path(request: Request) -> Response | None:
    """Return the answer to a path that nobody has, None for one below those of the protocol."""
    if is_protocol_path(request.scope["path"]):
        return None
    return reply(request, {**_document(404, NOT_FOUND), "error": "Not Found"}, 404)


def _torchserve(status: int, message: str) -> Failure:
    return _response(status, _document(status, message)), True


def _both(status: int, message: str) -> Failure:
    return _response(status, {**_document(status, message), "error": message}), True


def _document(status: int, message: str) -> dict[str, Any]:
    return {"code": status, "type": TYPES.get(status, "BadRequestException"), "message": message}


def _response(status: int, document: dict[str, Any]) -> bytes:
    body = pretty(document)
    headers = {"content-type": "application/json", "x-request-id": request_id(None), **HEADERS}
    lines = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    return response_head(status, lines, len(body)) + body
