"""Exact bytes to a server and its answers back, for what no client library would send."""

import json
import socket
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit


class RawClient:
    """One connection. Use it in a with statement."""

    def __init__(self, url: str, timeout_s: float = 20.0) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout_s)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response: status, headers in lower case, body. Raises `EOFError` at the end."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join(self.chunks())
        return status, headers, self._file.read(int(headers.get("content-length", "0")))

    def chunks(self) -> Iterator[bytes]:
        """Read a body that comes in chunks. Raises `EOFError` where the last one is missing."""
        while line := self._file.readline():
            chunk = self._file.read(int(line, 16))
            self._file.readline()
            if not chunk:
                return
            yield chunk
        raise EOFError

    def head(self) -> tuple[int, dict[str, str]]:
        """Read a response's status and headers, in lower case. Raises `EOFError` at the end."""
        line = self._file.readline()
        if not line:
            raise EOFError
        headers: dict[str, str] = {}
        while (field := self._file.readline()) != b"\r\n":
            if not field:
                raise EOFError
            name, value = field.decode("latin-1").split(":", 1)
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers

    def ask(self, data: bytes) -> tuple[int, Any]:
        """Send a request; return the status and the JSON of its answer."""
        self.send(data)
        status, _, body = self.answer()
        return status, json.loads(body)

    def is_at_end(self) -> bool:
        """Whether the server closes now; waits for it to."""
        return self._file.read(1) == b""


def request(path: str, body: bytes = b"", *fields: str, method: str = "POST") -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def infer(model: str, body: bytes, *fields: str, header: int | None = None) -> bytes:
    """Return the bytes of an inference request whose JSON part has `header` bytes."""
    more = [] if header is None else [f"Inference-Header-Content-Length: {header}"]
    return request(f"/v2/models/{model}/infer", body, *more, *fields)
