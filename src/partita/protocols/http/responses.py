"""Responses as bytes."""

from collections.abc import Callable, Iterable
from http import HTTPStatus

import msgspec

Failure = tuple[bytes, bool]
"""A whole response with an error, and whether the connection ends after it."""
Failures = Callable[[int, str, str, str], Failure]
"""Makes the error of a status, a message, a method and a path; both are empty where nobody knows them."""

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}


def response_head(status: int, headers: Iterable[tuple[bytes, bytes]], length: int) -> bytes:
    """Return the status line and headers, with Content-Length and the empty line that ends them."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    fields = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return line + fields + b"content-length: %d\r\n\r\n" % length


def chunked_head(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the same for a response whose length nobody knows yet: its content comes in chunks."""
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    fields = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return line + fields + b"transfer-encoding: chunked\r\n\r\n"


def with_close(response: bytes) -> bytes:
    """Return a response that tells the client that its connection is closed after it."""
    return with_lines(response, b"connection: close\r\n")


def with_lines(response: bytes, lines: bytes) -> bytes:
    """Return a response with further header lines, each with its end."""
    line = response.find(b"\r\n") + 2
    return b"%b%b%b" % (response[:line], lines, response[line:])


def json_response(status: int, document: object, *, close: bool = False) -> bytes:
    """Return a whole response with a JSON body."""
    body = msgspec.json.encode(document)
    headers = [(b"content-type", b"application/json")]
    if close:
        headers.append((b"connection", b"close"))
    return response_head(status, headers, len(body)) + body


def error_response(status: int, message: str, *, close: bool = True) -> bytes:
    """Return an error as the Open Inference Protocol shapes it: ``{"error": "..."}``."""
    return json_response(status, {"error": message}, close=close)


def plain_failure(status: int, message: str, method: str, path: str) -> Failure:  # noqa: ARG001
    """Return `error_response` whatever was asked."""
    return error_response(status, message, close=False), False
