"""Request heads: what they mean, what is refused, and that remembering them changes nothing."""

import pytest

from partita.protocols.http import heads
from partita.protocols.http.heads import HeadMemo, MalformedHead, RequestHead, parse_head


def head(*fields: str, line: str = "POST /v2/models/m/infer HTTP/1.1") -> RequestHead:
    return parse_head(raw(*fields, line=line))


def raw(*fields: str, line: str = "POST /v2/models/m/infer HTTP/1.1") -> bytes:
    return "\r\n".join([line, "Host: h", *fields, "", ""]).encode("latin-1")


def test_what_a_head_says() -> None:
    got = head(
        "Content-Length: 12",
        "Inference-Header-Content-Length: 7",
        "Content-Encoding: GZip ",
        "Accept-Encoding: deflate, gzip",
        "Expect: 100-Continue",
        line="POST /v2/models/a%2Fb%C3%A9?x=1&y=%20 HTTP/1.1",
    )
    assert (got.method, got.path, got.query) == ("POST", "/v2/models/a/bé", b"x=1&y=%20")
    assert got.raw_path == b"/v2/models/a%2Fb%C3%A9"
    assert (got.content_length, got.inference_header_length) == (12, 7)
    assert (got.content_encoding, got.response_coding, got.expects_continue) == ("gzip", "gzip", True)
    assert got.header(b"content-length") == b"12"
    assert got.header(b"x-nothing") is None


def test_what_a_plain_head_does_not_say() -> None:
    got = head(line="GET http://host:80/v2?a HTTP/1.1")
    assert (got.path, got.content_length, got.inference_header_length) == ("/v2", 0, None)
    assert (got.content_encoding, got.response_coding, got.expects_continue) == ("", "", False)


@pytest.mark.parametrize(
    ("line", "field", "kept"),
    [
        ("GET / HTTP/1.1", "X: y", True),
        ("GET / HTTP/1.1", "Connection: keep-alive", True),
        ("GET / HTTP/1.1", "Connection: close", False),
        ("GET / HTTP/1.1", "Connection: TE, Close", False),
        ("GET / HTTP/1.1", "Connection: closed", True),
        ("POST / HTTP/1.1", "Connection: close\r\nContent-Length: 3", False),
        ("GET / HTTP/1.0", "X: y", False),
        ("GET / HTTP/1.0", "Connection: keep-alive", False),
    ],
)
def test_whether_the_connection_is_kept(line: str, field: str, kept: bool) -> None:
    assert head(field, line=line).keep_alive is kept


@pytest.mark.parametrize(
    ("value", "accepts"),
    [
        ("gzip", "gzip"),
        ("br, GZIP ; q=0.5", "gzip"),
        ("deflate, gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0, deflate;q=0.1", "deflate"),
        ("gzip;q=0", ""),
        ("gzip;q=0.000", ""),
        ("xgzip", ""),
    ],
)
def test_accept_encoding(value: str, accepts: str) -> None:
    assert head(f"Accept-Encoding: {value}").response_coding == accepts


def test_an_offer_to_upgrade_is_ignored() -> None:
    got = head("Connection: Upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk", line="GET /v2 HTTP/1.1")
    assert (got.path, got.keep_alive) == ("/v2", True)


@pytest.mark.parametrize(
    "fields",
    [
        ("Content-Length: 3", "Content-Length: 4"),
        ("Content-Length: 3", "Content-Length: 3"),
        ("Content-Length: 3, 3",),
        ("Content-Length: 3", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 3"),
        ("Content-Length: +3",),
        ("Content-Length: -3",),
        ("Content-Length: 0x3",),
        ("Content-Length: 3 3",),
        ("Content-Length:",),
        ("Content-Length: 99999999999999999999",),
        ("Content-Length: ٣".encode().decode("latin-1"),),
        ("Transfer-Encoding: gzip",),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: chunked, gzip",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding:",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Inference-Header-Content-Length: -1",),
        ("Inference-Header-Content-Length: many",),
        ("Inference-Header-Content-Length: 9999999999999999999",),
        ("X: a", " folded"),
        ("X: a", "\tfolded"),
        ("X : a",),
        (" X: a",),
        ("X: a\rb",),
        ("X: a\nY: b",),
        ("X: \x00",),
        ("no colon",),
        ("X\x80: a",),
    ],
)
def test_an_ambiguous_or_broken_field_is_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(MalformedHead):
        head(*fields)


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/0.9",
        "GET / HTTP/2.0",
        "PRI * HTTP/2.0",
        "GET /",
        "GET x HTTP/1.1",
        "GET http://[bad/ HTTP/1.1",
        "GET http://host:999999/ HTTP/1.1",
        "CONNECT host:443 HTTP/1.1",
        "get / HTTP/1.1",
        "GET /\x7f HTTP/1.1",
        "GET /\xff HTTP/1.1",
        "\x16\x03\x01\x02\x00\x01\x00",
        "",
    ],
)
def test_a_broken_request_line_is_refused(line: str) -> None:
    with pytest.raises(MalformedHead):
        head(line=line)


def test_chunks_are_not_taken_from_http_1_0() -> None:
    with pytest.raises(MalformedHead, match=r"HTTP/1\.0"):
        head("Transfer-Encoding: chunked", line="POST / HTTP/1.0")


def test_a_chunked_body_has_no_length() -> None:
    assert head("Transfer-Encoding: Chunked").content_length == -1


def test_equal_bytes_are_parsed_once() -> None:
    memo = HeadMemo()
    assert memo.head(raw("A: 1")) is memo.head(raw("A: 1"))
    assert memo.head(raw("A: 1")) == parse_head(raw("A: 1"))
    assert memo.head(raw("A: 2")) is not memo.head(raw("A: 1"))


def test_a_malformed_head_is_not_remembered() -> None:
    memo = HeadMemo()
    for _ in range(2):
        with pytest.raises(MalformedHead):
            memo.head(raw("Content-Length: x"))


def test_the_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MEMO_ENTRIES", 3)
    memo = HeadMemo()
    for number in range(10):
        assert memo.head(raw(f"A: {number}")).header(b"a") == str(number).encode()
        assert len(memo._heads) <= 3
    long = raw("A: " + "x" * heads.MEMO_HEAD_BYTES)
    assert memo.head(long) == memo.head(long)
    assert long not in memo._heads
