"""Replies as TorchServe shapes them: pretty-printed JSON, its headers, its error bodies."""

import re
from typing import Any
from uuid import uuid4

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from partita.core.errors import InferenceFailed, PartitaError
from partita.engine.observing import INCOMING, is_request_id

HEADERS = {
    "Pragma": "no-cache",
    "Cache-Control": "no-cache; no-store, must-revalidate, private",
    "Expires": "Thu, 01 Jan 1970 00:00:00 UTC",
}

ERRORS = {
    "not_authorized": (400, "InvalidKeyException"),
    "foreign_caller": (403, "ForbiddenException"),
    "invalid_request": (400, "BadRequestException"),
    "invalid_input": (400, "BadRequestException"),
    "load_failed": (400, "ModelException"),
    "download_failed": (400, "DownloadArchiveException"),
    "payload_too_large": (413, "RequestEntityTooLargeException"),
    "model_not_found": (404, "ModelNotFoundException"),
    "version_not_found": (404, "ModelVersionNotFoundException"),
    "default_version": (403, "InvalidModelVersionException"),
    "method_not_allowed": (405, "MethodNotAllowedException"),
    "conflict": (409, "ConflictStatusException"),
    "model_unavailable": (503, "ServiceUnavailableException"),
    "queue_full": (503, "ServiceUnavailableException"),
    "shutting_down": (503, "ServiceUnavailableException"),
    "deadline_exceeded": (408, "RequestTimeoutException"),
    "inference_failed": (503, "InternalServerException"),
}
"""Status and type of each error code; 500 and InternalServerException for any other."""

_TOO_LARGE = re.compile(r"an item's outputs have \d+ bytes; max_output_bytes = \d+")
_MEMORY = re.compile(r"(^|: )(MemoryError|OutOfMemoryError)\b")
NOT_FOUND = "Requested resource is not found, please refer to API document."
NOT_ALLOWED = "Requested method is not allowed, please refer to API document."
WRONG_TOKEN = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"


TOLD = frozenset(
    {
        "Invalid model predict output",
        "number of batch response mismatched",
        "Unsupported model output data type.",
    }
)
"""What went wrong in a handler, as TorchServe tells it; of anything else clients hear no details."""


class VersionNotFound(PartitaError):
    """The model is served, but not in this version."""

    code = "version_not_found"


class MethodNotAllowed(PartitaError):
    """This server does not register or unregister models over this API."""

    code = "method_not_allowed"

    def __init__(self) -> None:
        super().__init__(NOT_ALLOWED)


class DefaultVersion(PartitaError):
    """The version answers who names none, and there are others."""

    code = "default_version"


class Conflict(PartitaError):
    """The model is there already."""

    code = "conflict"


def reply(request: Request, content: Any, status: int = 200, media: str | None = None) -> Response:
    """Return a response; what is not bytes goes out as JSON."""
    if not isinstance(content, bytes):
        content = pretty(content)
        media = "application/json"
    return Response(content, status, headers_of(request, status), media)


def headers_of(request: Request, status: int) -> dict[str, str]:
    """Return the headers that every answer has."""
    headers = {**HEADERS, "x-request-id": request_id(request.headers.get("x-request-id"))}
    if status >= 400:
        headers["Connection"] = "close"
    return headers


def request_id(given: str | None) -> str:
    """Return the request's own name, or the one that it got, or a new one."""
    if given is not None and is_request_id(given):
        return given
    incoming = INCOMING.get()
    return str(uuid4()) if incoming is None else incoming.request_id


def media_of(content: bytes) -> str:
    """Return the media type of what a model answered as bytes."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"


def pretty(document: Any) -> bytes:
    """Return JSON as TorchServe prints it."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def status_reply(request: Request, text: str, status: int = 200) -> Response:
    """Return ``{"status": text}``."""
    return reply(request, {"status": text}, status)


def error_reply(request: Request, status: int, kind: str, message: str) -> Response:
    """Return an error's body: its code, its Java name, and a text."""
    return reply(request, {"code": status, "type": kind, "message": message}, status)


def error_document(error: PartitaError) -> dict[str, Any]:
    """Return the body of one of our errors."""
    status, kind = ERRORS.get(error.code, (500, "InternalServerException"))
    if _is_memory(error):
        status, kind = 507, "OutOfMemory"
    return {"code": status, "type": kind, "message": message_of(error)}


def _is_memory(error: PartitaError) -> bool:
    """Whether a handler ran out of memory."""
    return isinstance(error, InferenceFailed) and bool(_MEMORY.search(str(error)))


async def known_error(request: Request, error: Exception) -> Response:
    """Answer with one of our errors."""
    assert isinstance(error, PartitaError)
    document = error_document(error)
    return reply(request, document, document["code"])


def message_of(error: PartitaError) -> str:
    """Return TorchServe's words for an error."""
    if error.code == "not_authorized":
        return WRONG_TOKEN
    if _is_memory(error):
        return "Out of resources"
    if isinstance(error, InferenceFailed):
        return str(error) if str(error) in TOLD or _TOO_LARGE.fullmatch(str(error)) else "Prediction failed"
    return "Worker died." if error.code == "worker_died" else str(error)


async def http_error(request: Request, error: Exception) -> Response:
    """Answer what matches no route."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return error_reply(request, 405, "MethodNotAllowedException", NOT_ALLOWED)
    if error.status_code == 404:
        return error_reply(request, 404, "ResourceNotFoundException", NOT_FOUND)
    return error_reply(request, error.status_code, "BadRequestException", error.detail)
