"""Request heads: parsed by httptools, remembered by their bytes.

What a head means is a function of its bytes alone, and keep-alive clients send the same bytes again and
again. So a parsed head is kept under its bytes and found again without parsing
(docs/decisions/0001-request-heads-are-remembered.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import httptools

from partita.core.errors import InvalidRequest
from partita.protocols.http.compression import accepted_coding

MEMO_ENTRIES = 2048
MEMO_HEAD_BYTES = 2048
"""A longer head is parsed each time: it is not the hot path, and must not fill the memory."""


class MalformedHead(InvalidRequest):
    """The bytes are not the head of an HTTP/1.1 request."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """One parsed head. Header names are lower case."""

    method: str
    path: str
    query: bytes
    raw_path: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    """Whether the connection is kept for another request. Not for HTTP/1.0, whose clients must be told so."""
    http_version: str
    content_length: int
    """Bytes of the body; 0 where there is none, −1 where it comes in chunks."""
    expects_continue: bool
    inference_header_length: int | None
    """``Inference-Header-Content-Length``; None = the body is all JSON."""
    content_encoding: str
    response_coding: str
    """Content coding that a large response may come in; empty = none."""
    added: bytes = b""
    """Header lines that its answer gets besides its own."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of this lower-case name."""
        return next((value for key, value in self.headers if key == name), None)


class _Collector:
    def __init__(self) -> None:
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.is_complete = True


def parse_head(data: bytes) -> RequestHead:
    """Parse a head that ends in its empty line; raises `MalformedHead`."""
    collector = _Collector()
    parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # an offer to upgrade may be ignored (RFC 9110 §7.8): the request is answered as it is
    except httptools.HttpParserError as error:
        raise MalformedHead(f"not an HTTP/1.1 request: {error}") from None
    if not collector.is_complete:
        raise MalformedHead("not an HTTP/1.1 request: the head ends early")
    version = parser.get_http_version()
    if version not in ("1.1", "1.0"):
        raise MalformedHead(f"HTTP/{version} is not supported; use HTTP/1.1")
    try:
        return _head(parser, collector, version)
    except httptools.HttpParserInvalidURLError:
        shown = collector.url[:80].decode("latin-1")
        raise MalformedHead(f"the request's target {shown!r} is not a path or URL") from None


def _head(parser: Any, collector: _Collector, version: str) -> RequestHead:
    headers: dict[bytes, bytes] = {}
    for name, value in collector.headers:
        if name == b"content-length" and headers.get(name, value) != value:
            raise MalformedHead("two different Content-Length headers")
        headers.setdefault(name, value)
    coding = headers.get(b"transfer-encoding", b"chunked").strip().lower()
    if coding != b"chunked":
        raise MalformedHead(f"transfer encoding {coding.decode('latin-1')!r} is not supported; use chunked")
    is_chunked = b"transfer-encoding" in headers
    if is_chunked and (b"content-length" in headers or version == "1.0"):
        raise MalformedHead("Transfer-Encoding with Content-Length, or in HTTP/1.0")
    url = httptools.parse_url(collector.url)
    path = url.path or b"/"
    return RequestHead(
        method=parser.get_method().decode("ascii"),
        path=_unquoted(path),
        query=url.query or b"",
        raw_path=path,
        headers=tuple(collector.headers),
        keep_alive=version == "1.1" and not _asks_to_close(collector.headers),
        http_version=version,
        content_length=-1 if is_chunked else _number(headers, b"content-length") or 0,
        expects_continue=headers.get(b"expect", b"").lower() == b"100-continue",
        inference_header_length=_number(headers, b"inference-header-content-length"),
        content_encoding=headers.get(b"content-encoding", b"").decode("latin-1").strip().lower(),
        response_coding=accepted_coding(headers.get(b"accept-encoding", b"")),
    )


def _asks_to_close(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether ``close`` is among the connection's options (RFC 9112 §9.3).

    Asked of the headers, since the parser forgets it where a request ends with its head.
    """
    return any(
        name == b"connection" and b"close" in [option.strip() for option in value.lower().split(b",")]
        for name, value in headers
    )


def _unquoted(path: bytes) -> str:
    if b"%" not in path:
        return path.decode("latin-1")
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(path).decode("utf-8", "replace")


def _number(headers: dict[bytes, bytes], name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise MalformedHead(f"{name.decode()} must be a number, not {value[:40].decode('latin-1')!r}")
    return int(value)


def asked_for(data: bytes) -> tuple[str, str]:
    """Return the method and path that bytes seem to ask for, if only their first line is right; else ""."""
    words = data[:MEMO_HEAD_BYTES].split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[1].startswith(b"/"):
        return "", ""
    return words[0].decode("latin-1"), _unquoted(words[1].split(b"?", 1)[0])


class HeadMemo:
    """Parsed heads by their bytes, bounded."""

    __slots__ = ("_added", "_heads")

    def __init__(self, added: Callable[[RequestHead], bytes] | None = None) -> None:
        """Take what says which header lines the answer to a head gets; None = none."""
        self._heads: dict[bytes, RequestHead] = {}
        self._added = added

    def head(self, data: bytes) -> RequestHead:
        """Return the parsed head; raises `MalformedHead`."""
        head = self._heads.get(data)
        if head is None:
            head = parse_head(data)
            if self._added is not None and (lines := self._added(head)):
                head = replace(head, added=lines)
            if len(data) <= MEMO_HEAD_BYTES:
                if len(self._heads) >= MEMO_ENTRIES:
                    self._heads.clear()
                self._heads[data] = head
        return head
